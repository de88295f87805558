"""When a plan counts as training the same model as one device."""

from __future__ import annotations

import math

import pytest

import parallab as pl
from parallab.cluster import Verification


def rank(losses, tensors, finite=True):
    return {
        "losses": losses, "reference_losses": [5.0, 4.0], "tensors": tensors, "finite": finite,
    }  # fmt: skip


def verification(plan: pl.Plan, loss: float = 4.0, weight: float = 0.0, finite: bool = True):
    ranks = [
        rank([None, None], [["embedding.tokens.weight", 0.0]]),
        rank([5.0, loss], [["embedding.tokens.weight", weight], ["head.norm.weight", 0.0]], finite),
    ]
    return Verification.from_ranks(plan, ranks)


def test_ranks_are_put_together():
    found = verification(pl.Plan("ddp", 2), weight=1e-5)
    assert found.losses == (5.0, 4.0)
    assert found.tensors == {"embedding.tokens.weight": 1e-5, "head.norm.weight": 0.0}
    assert found.worst_tensor == ("embedding.tokens.weight", 1e-5)
    assert found.ok


@pytest.mark.parametrize(
    ("choices", "weight", "ok"),
    [
        ({}, 0.9e-4, True),
        ({}, 1.1e-4, False),
        ({"optimizer": "sgd"}, 0.9e-6, True),
        ({"optimizer": "sgd"}, 1.1e-6, False),
        ({"precision": "bf16"}, 0.015, True),
        ({"precision": "bf16"}, 0.016, False),
        ({"precision": "bf16", "optimizer": "sgd"}, 0.12, True),
        ({"precision": "bf16", "optimizer": "sgd"}, 0.13, False),
        ({}, math.nan, False),
    ],
)
def test_how_much_a_weight_may_differ(choices, weight, ok):
    found = verification(pl.Plan("ddp", 2, **choices), weight=weight)
    assert found.ok is ok
    if not ok:
        assert found.first_divergence == (
            "embedding.tokens.weight",
            pytest.approx(weight, nan_ok=True),
        )
        assert "does NOT train the same model" in str(found)


@pytest.mark.parametrize("loss", [4.00001, math.nan])
def test_how_much_a_loss_may_differ(loss):
    found = verification(pl.Plan("ddp", 2), loss=loss)
    assert not found.ok
    assert found.first_divergence[0] == "the loss of step 1"


def test_a_value_that_is_no_number_fails():
    found = verification(pl.Plan("ddp", 2), finite=False)
    assert not found.ok
    assert "Some values are not numbers" in str(found)


def test_it_reads_as_a_table():
    found = verification(pl.Plan("zero3", 2), loss=4.0000004, weight=2e-7)
    assert str(found).splitlines() == [
        "zero3 on 2 trains the same model as one device.",
        "",
        "  step          loss    one device   relative difference",
        "     0      5.000000      5.000000               0.0e+00",
        "     1      4.000000      4.000000               1.0e-07",
        "",
        "Largest difference of a weight: 2.0e-07 (embedding.tokens.weight).",
        "Allowed: 1e-06 of a loss, 1e-04 of a weight (fp32, adamw).",
    ]
    assert "gross faults only" in str(verification(pl.Plan("ddp", 2, precision="bf16")))
