"""What every rank did when in one step, and what it held meanwhile.

    rank 0   F0 F1 F2 F3 .. .. .. .. B0 B1 B2 B3     passes, their micro-batches in them
             -  -  -  -               -  -  -  -     what is on the wire
             __..::||||||||||||||||||||||::..___     memory

Bars are measured. Behind them lies the planned schedule in outline: the same passes if none had to
wait for the wire. The latest untraced step is shown, since traced ones are slower.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.patches import Patch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import offset_copy

from parallab.plan import Plan
from parallab.plots.boxes import as_one_path
from parallab.plots.gantt import Bar, Gantt, gantt, merged, stairs
from parallab.plots.history import Array, History
from parallab.plots.labels import Label, Labels, width_ems
from parallab.plots.memory import MAX_RANKS, shown_ranks
from parallab.plots.style import (
    GREY,
    GRID,
    INK,
    MUTED,
    SPAN_COLOURS,
    in_words,
    plain_axes,
    tint,
)
from parallab.predict.bubble import Bubble, bubble, measured_bubble
from parallab.predict.parts import held_stages
from parallab.report import Report
from parallab.stages import ZERO_BUBBLE, stages_per_rank
from parallab.units import percent

# Where in a row of height 1 things lie, counted from its top.
PLANNED, PASSES, WIRE, MEMORY = (0.03, 0.51), (0.08, 0.46), (0.51, 0.6), (0.63, 0.97)
# A rank's first and second stage.
STAGE_TINTS = (1.0, 0.6)
MEMORY_GREY = tint(GREY, 0.4)
NUMBERED = ("forward", "backward", "weight")
# On an axis of length 1, what is no wider can be seen and no more.
HAIR = 1 / 1200


def timeline_inches(ranks: int) -> float:
    """The height that the rows of so many ranks need."""
    shown = min(ranks, MAX_RANKS)
    return shown * (0.34 if shown <= 4 else 0.3 if shown <= 8 else 0.2)


class TimelinePlot:
    """A row for each rank, all on one clock.

    Attributes:
        artists: what a step changes. All else changes only where `update` returns True.
    """

    def __init__(self, figure: Figure, place: SubplotSpec, history: History) -> None:
        self._ranks = shown_ranks(history.report)
        # To the right of the rows is room for how much memory each held.
        grid = place.subgridspec(1, 2, width_ratios=(1, 0.06), wspace=0)
        self._ax = ax = figure.add_subplot(grid[0])
        plain_axes(ax)
        ax.set(xlim=(0, 1), ylim=(len(self._ranks), 0), yticks=[])
        ax.grid(axis="x", color=GRID, linewidth=0.6)
        ax.spines["left"].set_visible(False)
        ax.xaxis.set_major_locator(MaxNLocator(10))
        ax.tick_params(labelbottom=False)
        self._points = ax.get_window_extent().width / figure.dpi * 72
        self._held = PolyCollection([], facecolors=MEMORY_GREY, linewidths=0)
        self._planned = PathCollection([], facecolors="none", edgecolors=GREY, linewidths=0.6)
        self._passes = PathCollection([], linewidths=0)
        self._wire = PathCollection([], facecolors=SPAN_COLOURS["communication"], linewidths=0)
        areas = [self._held, self._planned, self._passes, self._wire]
        for area in areas:
            area.set_snap(True)
            ax.add_collection(area, autolim=False)
        self._number_points = 6 if len(self._ranks) <= 8 else 5
        self._numbers = Labels(ax, self._number_points)
        above = offset_copy(ax.transAxes, figure, y=28, units="points")
        self._title = Labels(ax, 10, "left", above, "bold")
        self._title.show([Label("Timeline of a step", 0, 1, INK)])
        self._words = Labels(ax, 8, "right", above)
        self._unit = ax.text(
            1.022, 0, "", va="top", fontsize=7.5, color=INK,
            transform=offset_copy(ax.transAxes, figure, y=-4.5, units="points"),
        )  # fmt: skip
        self._amounts = Labels(ax, 7.5, "left", ax.get_yaxis_transform())
        labels = (self._numbers, self._amounts, self._title, self._words)
        self.artists = [*areas, *(label.artist for label in labels)]
        self._name_rows(history.report)
        self._explain(figure, history.report.plan)
        self._limit_seconds, self._unit_seconds = 0.0, 1.0
        self._traced, self._shown = False, -1

    def _name_rows(self, report: Report) -> None:
        plan = report.plan
        staged = plan.pp > 1 and len(self._ranks) <= 8
        beside: dict[str, Any] = dict(
            transform=self._ax.get_yaxis_transform(), ha="right", va="center"
        )
        for row, rank in enumerate(self._ranks):
            name = "GPU" if report.ranks[rank].device.startswith("cuda") else "rank"
            y = row + (0.28 if staged else 0.4)
            self._ax.text(-0.006, y, f"{name} {rank}", fontsize=7.5, color=INK, **beside)
            if staged:
                stages = "/".join(map(str, held_stages(plan, plan.coordinates(rank)["pp"])))
                words = f"stage {stages}"
                self._ax.text(-0.006, row + 0.72, words, fontsize=6, color=MUTED, **beside)

    def _explain(self, figure: Figure, plan: Plan) -> None:
        kinds = dict(SPAN_COLOURS)
        if plan.pp == 1 or plan.schedule not in ZERO_BUBBLE:
            del kinds["weight"]
        if plan.devices == 1:
            del kinds["communication"]
        # A receive is under way from when it is posted.
        long = {"communication": "communication, waiting included"}
        handles = [Patch(color=c, label=long.get(kind, kind)) for kind, c in kinds.items()]
        if plan.pp > 1 and stages_per_rank(plan.schedule) > 1:
            paler = tint(SPAN_COLOURS["forward"], STAGE_TINTS[1])
            handles.append(Patch(color=paler, label="paler: second stage"))
        if plan.pp > 1:
            handles.append(Patch(facecolor="none", edgecolor=GREY, label="as planned"))
        handles.append(Patch(color=MEMORY_GREY, label="memory, highest on the right"))
        self._ax.legend(
            handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(handles),
            fontsize=7.5, frameon=False, labelcolor=INK, handlelength=0.9, handleheight=0.9,
            columnspacing=0.9, handletextpad=0.35, borderpad=0, borderaxespad=0,
            bbox_transform=offset_copy(self._ax.transAxes, figure, y=6, units="points"),
        )  # fmt: skip

    def update(self, history: History) -> bool:
        """Shows the history as it is. Returns whether the axes changed as well."""
        index = history.timed_step
        if index is None or index == self._shown:
            return False
        self._shown = index
        step = gantt(history.report, index, self._ranks)
        rescaled = self._rescale(step)
        self._draw(step)
        self._write(step, history.report, index)
        return rescaled

    def _rescale(self, step: Gantt) -> bool:
        """Room for the step, changed as seldom as can be. Returns whether it was."""
        fits = 0.6 * self._limit_seconds < step.seconds <= self._limit_seconds
        if fits and step.traced == self._traced:
            return False
        self._traced = step.traced
        self._limit_seconds = 1.12 * step.seconds or 1.0
        self._unit_seconds = 1e-3 if self._limit_seconds < 1 else 1.0
        self._ax.set_xlim(0, self._limit_seconds / self._unit_seconds)
        self._ax.tick_params(labelbottom=True)
        self._unit.set_text("ms" if self._unit_seconds < 1 else "s")
        return True

    def _draw(self, step: Gantt) -> None:
        hair = HAIR * self._limit_seconds
        bars = [bar for bar in step.bars if bar.end > bar.start]
        # Passes that follow one another are a hair's breadth apart.
        apart = [bar._replace(end=max(bar.end - hair, (bar.start + bar.end) / 2)) for bar in bars]
        looks = {(bar.kind, bar.place) for bar in apart}
        by_look = {look: [b for b in apart if (b.kind, b.place) == look] for look in looks}
        self._passes.set_paths([self._boxes(alike, PASSES) for alike in by_look.values()])
        self._passes.set_facecolor([_colour(*look) for look in by_look])
        self._numbers.show(self._numbers_in(bars))
        self._planned.set_paths([self._boxes(step.planned, PLANNED)])
        sent = [
            Bar(row, "communication", 0, 0, start, max(end, start + hair))
            for row, intervals in enumerate(step.communication)
            for start, end in merged(intervals, hair)
        ]
        self._wire.set_paths([self._boxes(sent, WIRE)])
        self._held.set_verts(self._strips(step))

    def _boxes(self, bars: list[Bar], where: tuple[float, float]) -> Path:
        """Bars as rectangles."""
        left, right = np.array([(b.start, b.end) for b in bars]).reshape(-1, 2).T
        row = np.array([bar.row for bar in bars], dtype=float)
        x = np.stack([left, left, right, right], axis=1) / self._unit_seconds
        top, foot = row + where[0], row + where[1]
        return as_one_path(np.stack([x, np.stack([top, foot, foot, top], axis=1)], axis=2))

    def _strips(self, step: Gantt) -> list[Array]:
        """What each rank held, all on one scale from zero."""
        highest = max((float(held.max()) for _, held in step.held if len(held)), default=0.0)
        high, low = MEMORY
        return [
            stairs(moments, held, step.seconds)
            * (1 / self._unit_seconds, (high - low) / highest)
            + (0, row + low)
            for row, (moments, held) in enumerate(step.held)
            if len(held) and highest
        ]  # fmt: skip

    def _numbers_in(self, bars: list[Bar]) -> list[Label]:
        """Micro-batch numbers, on the kinds of passes that have room for nearly all of them."""
        last = max((bar.micro_batch for bar in bars), default=0)
        if not last:
            return []
        needed = self._number_points * width_ems(str(last)) + 1.5
        widths = {
            kind: self._points / self._limit_seconds
            * np.array([bar.end - bar.start for bar in bars if bar.kind == kind])
            for kind in NUMBERED
        }  # fmt: skip
        kinds = [k for k, wide in widths.items() if len(wide) and np.quantile(wide, 0.1) > needed]
        return [
            Label(
                str(bar.micro_batch),
                (bar.start + bar.end) / 2 / self._unit_seconds,
                bar.row + sum(PASSES) / 2,
                "white" if bar.kind == "forward" and not bar.place else INK,
            )
            for bar in bars
            if bar.kind in kinds
        ]

    def _write(self, step: Gantt, report: Report, index: int) -> None:
        traced = "traced" if step.traced else "untraced"
        self._title.show([Label(f"Timeline of step {step.step} ({traced})", 0, 1, INK)])
        words = [] if step.bars else ["nothing was timed"]
        if step.bars and not step.one_clock:
            words.append("each rank's own clock")
        measured = measured_bubble(report.plan, [rank.steps[index] for rank in report.ranks])
        if measured is not None:
            words.append(bubble_words(measured, bubble(report.plan)))
        self._words.show([Label(" · ".join(words), 1, 1, INK)])
        self._amounts.show([
            Label(in_words(float(held.max())), 1.005, row + sum(MEMORY) / 2, MUTED)
            for row, (_, held) in enumerate(step.held)
            if len(held)
        ])  # fmt: skip


def bubble_words(measured: Bubble, formula: Bubble | None) -> str:
    """The idle part of a pipeline's time, both ways of counting it, beside the formula's."""
    total, ideal = (percent(b) for b in (measured.idle_of_total, measured.idle_of_ideal))
    if formula is not None:
        total += f" (formula {percent(formula.idle_of_total)})"
        ideal += f" ({percent(formula.idle_of_ideal)})"
    return f"bubble: idle/total {total}, idle/ideal {ideal}"


def _colour(kind: str, place: int) -> tuple[float, float, float]:
    return tint(SPAN_COLOURS.get(kind, GREY), STAGE_TINTS[min(place, 1)])
