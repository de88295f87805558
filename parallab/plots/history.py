"""The listening half of a live view: turns what a run reports into what can be drawn.

It draws nothing, so it can be fed by a live run, by a replay, or by a whole Report at once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.progress import Gauge, Progress
from parallab.report import CATEGORIES, PHASES, Memory, Rank, Report, Source, Step, sent
from parallab.report import total_communication as totals

Array = NDArray[np.float64]
Bytes = dict[tuple[str, str], dict[str, int]]

# As many points as a slot has pixels, for all panels of a row together.
ROW_POINTS, MIN_POINTS = 480, 48


@dataclass
class Curve:
    """One rank's memory in one step.

    Attributes:
        x: (points,) moments within the step, from 0 at its beginning to 1 at its end.
        held_bytes: (categories, points) bytes from each moment until the next.
    """

    x: Array
    held_bytes: Array

    @cached_property
    def stacked(self) -> list[Array]:
        """Each category's area as a polygon, one upon the other: (vertices, 2), in x and bytes.

        Memory stays as it is until the next allocation, so the upper edges are stairs.
        """
        x = np.repeat([*self.x, 1.0], 2)[1:-1]
        held = np.repeat(self.held_bytes, 2, axis=1)
        upper = np.cumsum(held, axis=0)
        lower = upper - held
        return [
            np.column_stack([np.r_[x, x[::-1]], np.r_[high, low[::-1]]])
            for high, low in zip(upper, lower, strict=True)
        ]


@dataclass
class Slot:
    """A step whose memory is known by category, and the steps after it where only peaks are.

    Attributes:
        step: its number, None where the first steps of a run are not known by category.
        curves: one per rank.
        later_peaks: peak bytes (ranks,) of each following step until the next slot.
    """

    step: int | None
    curves: list[Curve | None]
    later_peaks: list[Array] = field(default_factory=list)


class History:
    """A Report that grows while its run is under way, and the arrays that its plots need.

    >>> history = History(run.model, run.plan)        # doctest: +SKIP
    >>> history.add(run.poll())                       # doctest: +SKIP

    Attributes:
        report: the finished steps so far, as a Report.
        slots: the latest steps known by category.
        peaks_bytes: (ranks,) the highest total of any step.
        communication: bytes of each step by (operation, axis), on its busiest rank.
        losses: one per step.
        timed_step: index of the latest untraced step, of the latest while there is none; None
            before the first.
        gauges: what each rank is doing now; empty once the run is over.
        predicted: what the formulas say of the same plan; None where nobody asked.
    """

    def __init__(
        self,
        model: Model,
        plan: Plan,
        *,
        source: Source = "measured",
        devices: list[str] | None = None,
        slots: int = 3,
        predicted: Report | None = None,
    ) -> None:
        names = devices or [""] * plan.devices
        ranks = [Rank(rank, {}, name, "") for rank, name in enumerate(names)]
        self.report = Report(source, model, plan, {}, ranks)
        self.slots: deque[Slot] = deque(maxlen=slots)
        self.peaks_bytes: Array = np.zeros(len(ranks))
        self.communication: list[Bytes] = []
        self.losses: list[float] = []
        self.timed_step: int | None = None
        self._only_traced = True
        self.gauges: list[Gauge] = []
        self.predicted = predicted
        self._points = max(MIN_POINTS, ROW_POINTS // len(ranks))

    @classmethod
    def of(cls, report: Report, slots: int = 3, predicted: Report | None = None) -> History:
        """The history of a Report that is complete."""
        names = [rank.device for rank in report.ranks]
        history = cls(
            report.model, report.plan, source=report.source, devices=names, slots=slots,
            predicted=predicted,
        )  # fmt: skip
        for kept, rank in zip(history.report.ranks, report.ranks, strict=True):
            kept.rank = rank.rank  # of a large world, one of each kind is there
        for index in range(report.steps):
            history._add_step([rank.steps[index] for rank in report.ranks])
        return history

    def add(self, progress: Progress) -> None:
        """Takes in what is new."""
        for ranks in progress.steps:
            self._add_step(ranks)
        if progress.finished:
            self.gauges = []
        elif progress.gauges:
            self.gauges = [g for g in progress.gauges if g.rank < len(self.peaks_bytes)]

    def _add_step(self, steps: list[Step]) -> None:
        traced = any(step.traced for step in steps)
        if not traced or self._only_traced:
            self.timed_step, self._only_traced = len(self.losses), traced
        for rank, step in zip(self.report.ranks, steps, strict=True):
            rank.steps.append(step)
        peaks = np.array([step.memory.peak_bytes for step in steps], dtype=float)
        self.peaks_bytes = np.maximum(self.peaks_bytes, peaks)
        if any(step.memory.at_peak for step in steps):
            self.slots.append(
                Slot(steps[0].step, [memory_curve(step, self._points) for step in steps])
            )
        else:
            if not self.slots:
                self.slots.append(Slot(None, [None] * len(steps)))
            self.slots[-1].later_peaks.append(peaks)
        busiest = max(steps, key=lambda step: sent(step, "wire_bytes"))
        self.communication.append(totals([c for c in busiest.communication if c.op != "recv"]))
        known = [step.loss for step in steps if step.loss is not None]
        self.losses.append(sum(known) / len(known) if known else float("nan"))


def standing_for(predicted: Report, rank: int) -> Rank:
    """The rank of a prediction that speaks for a rank: itself, or one of its kind.

    A prediction for many holds one rank of each kind. Kinds differ by the place in the pipeline
    first, then by being first or last on another axis.
    """
    place = predicted.plan.coordinates(rank)

    def distance(other: Rank) -> tuple[bool, bool, int]:
        there = predicted.plan.coordinates(other.rank)
        apart = sum(abs(there[axis] - at) for axis, at in place.items())
        return other.rank != rank, there["pp"] != place["pp"], apart

    return min(predicted.ranks, key=distance)


def memory_curve(step: Step, points: int) -> Curve | None:
    """One rank's memory in one step, as finely as it is known: over time, by phase, at the peak."""
    memory = step.memory
    if memory.series.get("seconds"):
        return _curve_over_time(memory, step.seconds, points)
    phases = {p.phase: p.by_category for p in memory.phases if p.by_category}
    if phases:
        known = [phases[name] for name in PHASES if name in phases]
        return Curve(np.arange(len(known)) / len(known), _by_category(known))
    if memory.at_peak:
        return Curve(np.zeros(1), _by_category([memory.at_peak]))
    return None


def _curve_over_time(memory: Memory, step_seconds: float | None, points: int) -> Curve:
    seconds = np.asarray(memory.series["seconds"], dtype=float)
    nothing = np.zeros(len(seconds))
    held = np.array([memory.series.get(category, nothing) for category in CATEGORIES])
    duration = max(step_seconds or 0.0, float(seconds[-1])) or 1.0
    keep = thinned(held.sum(axis=0), points)
    return Curve(np.clip(seconds[keep] / duration, 0, 1), held[:, keep])


def thinned(values: Array, points: int) -> NDArray[Any]:
    """Indices of at most about `points` values: the highest of each of as many equal stretches.

    The first and the last stay, and so does the peak of the whole.
    """
    if len(values) <= points:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), points + 1).astype(int)
    highest = [a + int(np.argmax(values[a:b])) for a, b in pairwise(edges)]
    return np.unique([0, *highest, len(values) - 1])


def _by_category(rows: list[dict[str, int]]) -> Array:
    return np.array([[float(row.get(c, 0)) for row in rows] for c in CATEGORIES])
