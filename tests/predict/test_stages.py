"""Ranks with two stages: states and payload predicted as simulated to the byte, peaks nearly.

What tests/test_three_ways.py measures has one stage a rank, or no ZeRO and no tensor axis.
"""

import pytest

from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.predict.communication import payload_per_step
from parallab.predict.peaks import peak_memory
from parallab.report import total_communication
from parallab.simulate.rank import run

LEARNED = dict(
    name="learned", layers=8, hidden=40, heads=4, kv_heads=2, ffn=96, vocab=131,
    positions="learned", context=64,
)  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "choices", "rank"),
    [
        # A stage is reduced, and its weights let go, when its last backward pass is over.
        ({}, dict(strategy="dp+pp", dp=3, pp=2, zero=3, schedule="loopedbfs"), 0),
        # One reduction is under way on a rank, not one in each stage.
        ({}, dict(strategy="dp+pp", dp=2, pp=2, zero=2, schedule="loopedbfs"), 2),
        # Gradients that the tensor axis has summed wait for the weights' half, too.
        ({}, dict(strategy="3d", dp=1, pp=2, tp=2, schedule="zb"), 2),
        # Tokens and positions are one unit, unless the head shares the tokens.
        (dict(tied=True), dict(strategy="dp+pp", dp=3, pp=2, zero=1, schedule="interleaved"), 0),
    ],
)
def test_two_stages_a_rank(sizes, choices, rank):
    model, plan = Model(**LEARNED | sizes), Plan(**choices, seq=48, micro_batches=4)
    step = run(model, plan, rank).step
    predicted = peak_memory(model, plan, rank, "cpu")
    assert predicted.states == step.memory.states
    assert payload_per_step(model, plan, plan.coordinates(rank)) == {
        key: row["payload_bytes"] for key, row in total_communication(step.communication).items()
    }
    assert predicted.peak_bytes == pytest.approx(step.memory.peak_bytes, rel=0.01)
