"""Pipeline, tensor and combined plans: one device's loss and weights, and the bytes of theory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from parallab.cluster.verification import Verification
from parallab.errors import PlanError
from parallab.models.spec import Model
from parallab.parallel.optimizer import LEARNING_RATE
from parallab.plan import Plan
from parallab.predict.communication import payload_per_step
from parallab.predict.memory import model_states
from parallab.rank.trainer import Trainer
from parallab.rank.verify import verify
from parallab.report import WARM_STEP, sent, total_communication
from parallab.stages import SCHEDULES
from tests.ranks import run_ranks

CPU = torch.device("cpu")
PLAIN = dict(name="plain", layers=4, hidden=32, heads=4, kv_heads=4, ffn=64, vocab=257)
# Tied, with every switch that "plain" leaves off; six heads and an odd vocabulary.
TIED = dict(
    name="tied", layers=8, hidden=48, heads=6, kv_heads=2, ffn=52, vocab=257, tied=True,
    norm="layer", positions="learned", mlp="plain", activation="gelu", qkv_bias=True,
    out_bias=True, mlp_bias=True, qk_norm=True,
)  # fmt: skip
SHORT = dict(TIED, layers=4)  # deep enough for two ranks with two stages each

# A norm well below the gradients' own; AdamW would hide it, since it divides by their size.
CLIP: dict[str, Any] = dict(clip=0.1, optimizer="sgd")

Case = tuple[dict[str, Any], dict[str, Any]]


def on(devices: int, strategy: str, **choices: Any) -> dict[str, Any]:
    """A plan's choices; eight sequences of sixteen tokens."""
    return dict(strategy=strategy, devices=devices, batch=8, seq=16) | choices


PIPELINES: list[Case] = [
    (sizes, on(2, "pp", micro_batches=8, schedule=schedule))
    for sizes in (PLAIN, TIED)
    for schedule in SCHEDULES
]
CASES: dict[str, list[Case]] = {
    "tp": [
        (sizes, on(2, "tp", **more))
        for sizes in (PLAIN, TIED)
        for more in (
            {},
            dict(sequence_parallel=True, recompute="full"),
            dict(recompute="full", micro_batches=2),
        )
    ],
    "pp": [*PIPELINES, (PLAIN, on(2, "mp")), (TIED, on(2, "mp"))],
    "four": [
        (PLAIN, on(4, "tp", sequence_parallel=True)),
        (PLAIN, on(4, "mp")),
        (PLAIN, on(4, "pp", micro_batches=8)),
        *[(TIED, on(4, "pp", micro_batches=8, schedule=s)) for s in SCHEDULES],
        *[(SHORT, on(4, "3d", dp=2, pp=1, tp=2, zero=zero)) for zero in range(4)],
        (PLAIN, on(4, "3d", dp=2, pp=1, tp=2, zero=3)),
        *[(SHORT, on(4, "dp+pp", dp=2, pp=2, zero=zero, micro_batches=4)) for zero in range(4)],
        *[(SHORT, on(4, "dp+pp", dp=2, pp=2, zero=zero, micro_batches=4, recompute="full", **CLIP))
          for zero in (0, 3)],
        *[(SHORT, on(4, "dp+pp", dp=2, pp=2, zero=zero, micro_batches=4, schedule="zbv"))
          for zero in range(2)],
    ],
    "eight": [
        *[(SHORT, on(8, "3d", dp=2, pp=2, tp=2, zero=zero, micro_batches=4)) for zero in range(4)],
        (SHORT, on(8, "3d", micro_batches=4, zero=1, schedule="zbv", sequence_parallel=True)),
        # Two sequences a micro-batch: what is scattered along the sequence must travel as well.
        (PLAIN, on(8, "3d", batch=16, micro_batches=4, sequence_parallel=True)),
        *[(SHORT, on(8, "3d", micro_batches=4, zero=zero, sequence_parallel=zero == 3, **CLIP))
          for zero in (2, 3)],
    ],
}  # fmt: skip


def _verify_all(rank: int, cases: list[Case]) -> list[dict[str, Any]]:
    return [verify(Model(**sizes), Plan(**choices), CPU, steps=2) for sizes, choices in cases]


@pytest.mark.parametrize("name", CASES)
def test_ends_with_one_devices_loss_and_weights(name: str) -> None:
    cases = CASES[name]
    devices = cases[0][1]["devices"]
    by_rank = run_ranks(_verify_all, devices, cases, deadline_seconds=200)
    for i, (sizes, choices) in enumerate(cases):
        found = Verification.from_ranks(Plan(**choices), [results[i] for results in by_rank])
        assert found.ok, f"{sizes['name']} {choices}\n{found}"
        whole = {n for unit in Model(**sizes).units().values() for n in unit}
        assert found.tensors.keys() == whole


def _train_all(rank: int, cases: list[Case]) -> list[Any]:
    last = []
    for sizes, choices in cases:
        trainer = Trainer(Model(**sizes), Plan(**choices), CPU, trace_every=0)
        # A pipeline's neighbours greet one another in the first step; DDP settles its buckets.
        ddp = trainer.plan.data == "replicate" and trainer.plan.pp == 1
        last.append([trainer.step() for _ in range(WARM_STEP + 1 if ddp else 2)][-1])
        trainer.close()
    return last


def _neighbours(plan: Plan, one: int, other: int) -> bool:
    """Whether two ranks share all but one axis."""
    here, there = plan.coordinates(one), plan.coordinates(other)
    return sum(here[axis] != there[axis] for axis in here) == 1


def test_bytes_of_eight_ranks_are_the_closed_forms() -> None:  # of fewer: test_three_ways.py
    cases = CASES["eight"]
    by_rank = run_ranks(_train_all, cases[0][1]["devices"], cases, deadline_seconds=200)
    for i, (sizes, choices) in enumerate(cases):
        model, plan = Model(**sizes), Plan(**choices)
        for rank, steps in enumerate(by_rank):
            rows = total_communication(steps[i].communication)
            counted = {key: row["payload_bytes"] for key, row in rows.items()}
            expected = payload_per_step(model, plan, plan.coordinates(rank))
            assert counted == expected, (sizes["name"], plan, rank)
            assert sum(steps[i].traffic.values()) == sent(steps[i], "wire_bytes")
            if plan.clip is None:
                assert all(_neighbours(plan, rank, other) for other in steps[i].traffic)
            states = steps[i].memory.states
            form = model_states(model, plan, rank)
            assert states["parameters"] == form["parameters"], (sizes["name"], plan, rank)


def test_clipping_changes_the_training() -> None:
    def after_a_step(**choices: Any) -> list[torch.Tensor]:
        plan = Plan("single", batch=8, seq=16, optimizer="sgd", **choices)
        trainer = Trainer(Model(**TIED), plan, CPU, trace_every=0)
        before = [p.detach().clone() for p in trainer.module.parameters()]
        trainer.step()
        changed = [p - b for p, b in zip(trainer.module.parameters(), before, strict=True)]
        trainer.close()
        return changed

    free, clipped = after_a_step(), after_a_step(clip=0.1)
    # The update is the learning rate times the gradient, so its norm is that of the clipped one.
    norm = torch.nn.utils.get_total_norm(clipped) / LEARNING_RATE["sgd"]
    assert norm.item() == pytest.approx(0.1, rel=1e-3)
    assert torch.nn.utils.get_total_norm(free) > 3 * torch.nn.utils.get_total_norm(clipped)


REFUSALS = [
    (dict(strategy="pp", devices=8), PLAIN, "has 4 layers, fewer than the 8 stages"),
    (dict(strategy="pp", devices=4, micro_batches=2), PLAIN, "needs at least 4 micro-batches"),
    (dict(strategy="pp", devices=4, micro_batches=4, schedule="dualpipev"), TIED, "at least 8"),
    (dict(strategy="pp", devices=2, batch=6, micro_batches=4), PLAIN, "does not divide"),
    (dict(strategy="pp", devices=2, micro_batches=5, schedule="interleaved"), TIED, "rounds of 2"),
    (dict(strategy="3d", devices=8, dp=2, pp=2, tp=1), PLAIN, "is 4 ranks, but devices=8"),
    (dict(strategy="dp+pp", dp=2, pp=2, zero=3, schedule="zb"), TIED, "wrong gradients"),
    (dict(strategy="pp", devices=2, schedule="zbv", recompute="full"), TIED, "recompute='none'"),
    (
        dict(strategy="tp", devices=4),
        TIED,
        "heads=6, which does not divide by tp=4; tp may be 1, 2",
    ),
    (dict(strategy="tp", devices=3), TIED, "kv_heads=2, which does not divide by tp=3"),
    (dict(strategy="tp", devices=4), dict(PLAIN, vocab=5), "the last of tp=4 ranks would get none"),
    (dict(strategy="mp", devices=2, micro_batches=4), PLAIN, "choose pp"),
    (dict(clip=0), PLAIN, "is no norm"),
    (dict(strategy="ddp", zero=2), PLAIN, "choose the strategy zero2"),
    (dict(strategy="tp", devices=2, seq=15, sequence_parallel=True), PLAIN, "choose seq=16"),
]


@pytest.mark.parametrize(("choices", "sizes", "reason"), REFUSALS)
def test_what_cannot_work_is_refused_with_the_reason(
    choices: dict[str, Any], sizes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(PlanError, match=reason):
        Plan(**choices).check(Model(**sizes))
