"""A step on one clock: what every rank did when, what it held, and what its schedule had planned.

It draws nothing; `timeline` does.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from parallab.plan import Plan
from parallab.plots.history import Array
from parallab.predict.parts import held_stages
from parallab.report import Report, Step
from parallab.schedules import Pass, orders, planned

Interval = tuple[float, float]


class Bar(NamedTuple):
    """A stretch of one rank's time, in seconds since the first rank began the step.

    Attributes:
        row: the rank's row.
        kind: "forward", "backward", "weight", "optimizer", or what else was measured.
        place: 0 for the rank's first stage, 1 for its second.
    """

    row: int
    kind: str
    place: int
    micro_batch: int
    start: float
    end: float


@dataclass
class Gantt:
    """One step.

    Attributes:
        traced: whether memory was followed by category, which makes a step slower.
        one_clock: whether it is known when each rank began. Otherwise each begins at zero.
        seconds: until the last rank has ended.
        bars: what the ranks computed.
        communication: by row, when anything was on its way.
        planned: the passes as the schedule has them, each as long as such a pass took on average
            and none waiting for the wire; empty without a pipeline.
        held: by row, moments in seconds and the bytes held from each until the next.
    """

    step: int
    traced: bool
    one_clock: bool
    seconds: float
    bars: list[Bar]
    communication: list[list[Interval]]
    planned: list[Bar]
    held: list[tuple[Array, Array]]


def gantt(report: Report, index: int, ranks: list[int]) -> Gantt:
    """A step of a Report, with a row for each of `ranks`."""
    steps = [rank.steps[index] for rank in report.ranks]
    begins = [step.begin for step in steps if step.begin is not None]
    one_clock = len(begins) == len(steps)
    late = [begin - min(begins) for begin in begins] if one_clock else [0.0] * len(steps)
    bars: list[Bar] = []
    communication: list[list[Interval]] = []
    for row, rank in enumerate(ranks):
        stages = held_stages(report.plan, report.plan.coordinates(rank)["pp"])
        told = []
        for span in steps[rank].spans:
            start, end = span.start + late[rank], span.end + late[rank]
            if span.kind == "communication":
                told.append((start, end))
                continue
            place = stages.index(span.stage) if span.stage in stages else 0
            bars.append(Bar(row, span.kind, place, span.micro_batch, start, end))
        communication.append(merged(told))
    ends = [late[rank] + (steps[rank].seconds or 0.0) for rank in ranks]
    ends += [bar.end for bar in bars] + [end for row in communication for _, end in row]
    return Gantt(
        steps[0].step, any(step.traced for step in steps), one_clock, max(ends), bars,
        communication, _planned(report.plan, steps, late, ranks),
        [_held(steps[rank], late[rank]) for rank in ranks],
    )  # fmt: skip


def merged(intervals: Iterable[Interval], apart: float = 0.0) -> list[Interval]:
    """Intervals joined where they overlap or lie no more than `apart` from each other."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1] + apart:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def stairs(moments: Array, values: Array, end: float) -> Array:
    """The area under values that stay until the next: (vertices, 2), down to zero at both ends."""
    x = np.repeat([*moments, end], 2)
    return np.column_stack([x, np.r_[0, np.repeat(values, 2), 0]])


@cache
def _orders(plan: Plan) -> list[list[Pass]]:
    return orders(plan.schedule, plan.pp, plan.micro_batches)


@cache
def _kinds(plan: Plan) -> dict[tuple[str, int, int], str]:
    """What is planned by what is measured: (kind of span, stage, micro-batch) -> kind of pass."""
    works = [work for order in _orders(plan) for work in order]
    return {(_measured_as(work), work.stage, work.micro_batch): work.kind for work in works}


def _planned(plan: Plan, steps: list[Step], late: list[float], ranks: list[int]) -> list[Bar]:
    """Every pipeline's passes, from its first forward on."""
    if plan.pp == 1:
        return []
    kinds = _kinds(plan)
    took: dict[tuple[str, int], list[float]] = defaultdict(list)
    first: dict[tuple[int, int], float] = {}
    for rank, step in enumerate(steps):
        for span in step.spans:
            kind = kinds.get((span.kind, span.stage, span.micro_batch))
            if kind is None:
                continue
            took[kind, span.stage].append(span.end - span.start)
            if kind == "forward":
                pipeline, start = _pipeline(plan, rank), span.start + late[rank]
                first[pipeline] = min(first.get(pipeline, start), start)
    mean = {key: statistics.fmean(seconds) for key, seconds in took.items()}
    if not mean.keys() >= {(kind, stage) for (_, stage, _), kind in kinds.items()}:
        return []
    slots = planned(_orders(plan), lambda work: mean[work.kind, work.stage])
    bars = []
    for row, rank in enumerate(ranks):
        at, zero = plan.coordinates(rank)["pp"], first[_pipeline(plan, rank)]
        stages = held_stages(plan, at)
        for work, start, end in slots[at]:
            name, place = _measured_as(work), stages.index(work.stage)
            bars.append(Bar(row, name, place, work.micro_batch, zero + start, zero + end))
    return bars


def _measured_as(work: Pass) -> str:
    """What a pass's span is called: a backward of the input alone is one too."""
    return "backward" if work.kind == "input" else work.kind


def _pipeline(plan: Plan, rank: int) -> tuple[int, int]:
    """Which of several pipelines a rank belongs to."""
    coords = plan.coordinates(rank)
    return coords["dp"], coords["tp"]


def _held(step: Step, late: float) -> tuple[Array, Array]:
    seconds = np.asarray(step.memory.marks.get("seconds", []), dtype=float)
    return seconds + late, np.asarray(step.memory.marks.get("bytes", []), dtype=float)
