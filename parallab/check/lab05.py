"""Exercises of 05_data_and_pipeline."""

from __future__ import annotations

from functools import partial

from parallab.check.exercise import Exercise
from parallab.check.judges import (
    MIB,
    Condition,
    Slip,
    number,
    peak_at_most,
    plan_for,
    ran,
    wire_at_most,
)
from parallab.check.measure import measured
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.predict.bubble import bubble
from parallab.report import Report
from parallab.sweep import sent_by_axis
from parallab.units import percent

LAB = "05_data_and_pipeline"
MODEL = Model("micro")


def _plan(zero: int) -> Plan:
    return Plan("dp+pp", dp=2, pp=2, zero=zero, batch=16, micro_batches=2)


def _sent_on_dp(zero: int) -> float:
    return round(sent_by_axis(measured(MODEL, _plan(zero)))["dp"] / MIB, 2)


def _bubble_at_most(share: float) -> Condition:
    def holds(report: Report) -> tuple[bool, str]:
        planned = bubble(report.plan)
        idle = planned.idle_of_total if planned else 0.0
        where = "within" if idle <= share else "above"
        return (
            idle <= share,
            f"its schedule leaves {percent(idle)} of the time idle, {where} {percent(share)}",
        )

    return holds


EXERCISES = (
    Exercise(
        "zero3-in-a-pipeline", LAB,
        "The model micro on two pipelines of two ranks with ZeRO-3, 16 sequences in 2 "
        "micro-batches: how many MiB does a rank send on the data axis in a step, on an ideal "
        "ring? It is run and counted. Two decimals are enough.",
        number(
            lambda: _sent_on_dp(3), "a rank's bytes on the data axis", unit="MiB", within=0.02,
            slips=(Slip(lambda: _sent_on_dp(1), "So much it is with ZeRO-1, which gathers once a "
                        "step; ZeRO-3 gathers for every micro-batch."),),
            why="The weights of a stage were gathered three times, for two forward passes and for "
                "the backward passes, and the gradients reduce-scattered once.",
        ),
        lambda: _sent_on_dp(3),
        "The table has it for 4 and for 8 micro-batches: how much does each of them add?",
    ),
    Exercise(
        "two-pipelines", LAB,
        "Four devices, the model micro, a batch of 16 sequences of 128: give a dp+pp plan with a "
        "measured peak of at most 16 MiB on every rank and a bubble of at most 15 % by its "
        "schedule, whose ranks send at most 3 MiB in a step.",
        plan_for(
            lambda: MODEL, peak_at_most(16 * MIB), _bubble_at_most(0.15), wire_at_most(3 * MIB),
            devices=4, keep={"strategy": "dp+pp", "batch": 16, "seq": 128},
            report_of=partial(ran, steps=4),
        ),
        lambda: Plan("dp+pp", dp=2, pp=2, zero=1, batch=16, micro_batches=8),
        "The number of micro-batches decides the bubble, and the ZeRO stage the bytes.",
    ),
)  # fmt: skip
