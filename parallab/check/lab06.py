"""Exercises of 06_three_dimensions."""

from __future__ import annotations

from typing import Any

from parallab.check.exercise import Exercise, Verdict, right, wrong
from parallab.check.judges import plan_for
from parallab.check.predicted import fits, predicted, uses_at_least
from parallab.hardware import Hardware
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.plots.traffic import axis_between
from parallab.predict import predict

LAB = "06_three_dimensions"
CUBE = Plan("3d", dp=2, pp=2, tp=2, batch=16)
RANK = 6
HARDWARE = Hardware("h100", nodes=8)
LARGE = {"strategy": "3d", "batch": 512, "seq": 4096, "precision": "bf16", "optimizer": "adamw"}


def _partners() -> dict[str, int]:
    """To whom the rank sends, by axis, as its predicted traffic says."""
    rank = next(r for r in predict(Model("micro"), CUBE).ranks if r.rank == RANK)
    return {axis_between(CUBE, RANK, to): to for to in rank.steps[-1].traffic}


def _judge_partners(answer: Any) -> Verdict:
    if not isinstance(answer, dict) or not answer:
        return wrong(f"The answer is a dict from axis to rank, not {answer!r:.60}.")
    partners = _partners()
    missing = [axis for axis in partners if axis not in answer]
    if missing:
        return wrong(f"The answer says nothing of {', '.join(missing)}.")
    for axis in partners:
        if isinstance(answer[axis], bool) or not isinstance(answer[axis], int):
            return wrong(f"A rank is a whole number, and for {axis} you say {answer[axis]!r:.60}.")
    amiss = [axis for axis in partners if answer[axis] != partners[axis]]
    if amiss:
        place = ", ".join(f"{axis} {at}" for axis, at in CUBE.coordinates(RANK).items())
        return wrong(
            f"On {', '.join(amiss)} it sends to another rank. Rank {RANK} is at {place}, and its "
            "partner on an axis differs there and nowhere else."
        )
    return right(
        f"Rank {RANK} sends to rank {partners['tp']} on tp, {partners['dp']} on dp and "
        f"{partners['pp']} on pp: tp counts by ones, dp by tp, and pp by tp × dp."
    )


EXERCISES = (
    Exercise(
        "rank-six", LAB,
        "On the cube of eight ranks (dp=2, pp=2, tp=2): which rank does rank 6 send to on each "
        "axis? Answer as a dict with the keys tp, dp and pp, such as {'tp': 0, 'dp': 1, 'pp': 2}.",
        _judge_partners,
        _partners,
        "In the picture, who is next to it, who is above it, and who is in the other stage?",
    ),
    Exercise(
        "seventy-billion", LAB,
        "Llama 3.1 70B on 8 nodes of 8 H100s, 512 sequences of 4,096 tokens a step in bf16: give a "
        "3d plan that leaves a tenth of every GPU free and is estimated to use at least 45 % of "
        "the GPUs' peak.",
        plan_for(lambda: Model("llama-3.1-70b"), fits(HARDWARE), uses_at_least(0.45, HARDWARE),
                 report_of=predicted, devices=HARDWARE.devices, keep=LARGE),
        lambda: Plan("3d", dp=4, pp=4, tp=4, batch=512, seq=4096, micro_batches=128,
                     sequence_parallel=True, precision="bf16"),
        "Keep tp inside a node, single sequences as micro-batches, and split norms and residuals "
        "too (sequence_parallel=True), so that nothing has to be computed twice.",
    ),
)  # fmt: skip
