"""The exercises of 03_model_and_pipeline: waiting, in time and in memory."""

from __future__ import annotations

import math
from typing import Any

from parallab.check.exercise import Exercise, Verdict, right, wrong
from parallab.check.functions import Returned, function_on
from parallab.check.judges import MIB, Slip, number, peak_at_most, plan_for
from parallab.check.measure import measured
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.predict.bubble import bubble
from parallab.report import Report, Step
from parallab.units import percent

LAB = "03_model_and_pipeline"
RANKS = 4
LIMIT_BYTES = 12 * MIB
MOST_IDLE = 0.15
_MODEL = Model("micro")
_1F1B = Plan("pp", pp=RANKS, micro_batches=8, batch=8, seq=64)
_KEEP: dict[str, Any] = {"batch": 32, "seq": 64, "pp": RANKS}
_CASES = ((2, 1), (2, 4), (4, 8), (8, 64))


def waiting(step: Step) -> int:
    """The most micro-batches of a step whose forward pass is over and whose backward is not."""
    moments = [(span.end, 1) for span in step.spans if span.kind == "forward"]
    moments += [(span.end, -1) for span in step.spans if span.kind == "backward"]
    now, most = 0, 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most


def _idle_at_most(report: Report) -> tuple[bool, str]:
    lost = bubble(report.plan)
    if lost is None:
        return False, "this plan has no pipeline"
    measured_idle = report.bubble
    said = f"its schedule leaves ranks idle {percent(lost.idle_of_total, 1)} of the time"
    if measured_idle is not None:
        said += f" ({percent(measured_idle.idle_of_total)} measured, where ranks share cores)"
    return lost.idle_of_total <= MOST_IDLE, f"{said}, and {percent(MOST_IDLE)} are allowed"


def _judge_formula(returned: list[Returned]) -> Verdict:
    for one, (ranks, micro_batches) in zip(returned, _CASES, strict=True):
        if not isinstance(one.value, int | float) or isinstance(one.value, bool):
            return wrong(f"Your function returned {one.words}; return a number from 0 to 1.")
        planned = bubble(Plan("pp", pp=ranks, micro_batches=micro_batches, schedule="gpipe"))
        assert planned is not None
        given = float(one.value)
        where = f"{ranks} ranks and {micro_batches} micro-batches"
        if math.isclose(given, planned.idle_of_total, rel_tol=1e-6):
            continue
        if math.isclose(given, planned.idle_of_ideal, rel_tol=1e-6):
            return wrong(
                f"For {where} you say {given:.3g}: that is the waiting in parts of the work. "
                "Wanted is the waiting in parts of the whole time, work and waiting."
            )
        return wrong(f"For {where} you say {given:.3g}, and the planned schedule says otherwise.")
    cases = ", ".join(
        f"{p} × {m}: {percent(one.value, 1)}" for one, (p, m) in zip(returned, _CASES, strict=True)
    )
    return right(f"The planned schedules agree (ranks × micro-batches: idle): {cases}.")


def idle(ranks: int, micro_batches: int) -> float:
    """The part of the time that ranks of gpipe or 1f1b wait."""
    return (ranks - 1) / (micro_batches + ranks - 1)


EXERCISES = (
    Exercise(
        name="waiting-micro-batches",
        lab=LAB,
        question=f"1F1B on {RANKS} ranks with {_1F1B.micro_batches} micro-batches: how many "
        "micro-batches wait on rank 0 at most, between their forward and their backward pass?",
        judge=number(
            lambda: waiting(measured(_MODEL, _1F1B).ranks[0].steps[-1]),
            "the most micro-batches that wait on rank 0",
            slips=(
                Slip(lambda: 8, "That is gpipe, which runs all forward passes first."),
                Slip(lambda: 1, "That is the last rank, which goes back at once."),
                Slip(lambda: 3, "Those are on their way to ranks 1, 2 and 3; rank 0 has its own."),
            ),
            why="one for each rank of the pipeline, however many micro-batches there are; counted "
            "on the measured timeline",
        ),
        solution=lambda: RANKS,
        hint="Look at the row of rank 0 in the timeline: how many forward passes come before its "
        "first backward pass?",
    ),
    Exercise(
        name="bubble-formula",
        lab=LAB,
        question="Write the bubble as a function: for so many ranks and micro-batches, which part "
        "of the whole time (0 to 1) do the ranks of gpipe or 1f1b wait? Check it first with one "
        "micro-batch.",
        judge=function_on(
            len(_CASES),
            lambda case: _CASES[case],
            _judge_formula,
            takes="ranks and micro_batches",
        ),
        solution=lambda: idle,
        hint="A rank works for m micro-batches, and waits for as long as ranks − 1 of them take.",
    ),
    Exercise(
        name="small-bubble",
        lab=LAB,
        question=f"The model micro on a pipeline of {RANKS} ranks, batch=32 and seq=64: find a "
        f"plan whose schedule leaves the ranks idle at most {percent(MOST_IDLE)} of the time, and "
        f"whose peak is at most {LIMIT_BYTES // MIB} MiB on every rank.",
        judge=plan_for(
            lambda: _MODEL, _idle_at_most, peak_at_most(LIMIT_BYTES), devices=RANKS, keep=_KEEP
        ),
        solution=lambda: Plan("pp", micro_batches=32, **_KEEP),
        hint="More micro-batches make the bubble smaller. Which schedule lets few of them wait?",
    ),
)
