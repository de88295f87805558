r"""Memory per GPU, stacked by category, over the latest steps that are known by category.

Every rank has a panel, and every such step a slot in it: stacked areas over the time of the step.
The steps between two slots are timed, not traced, so only their peak is known: a grey outline, as
narrow as it is poor. Where there is a prediction, its peak lies pale under all slots, and a dashed
line is its height.

    |  __    ┌─┐ __    ┌─┐
    | /  \___│ │/  \___│ │
    |_____________________
       step 1  2-5  step 6  7-9
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import offset_copy

from parallab.plots.history import Array, History, standing_for
from parallab.plots.labels import Label, Labels
from parallab.plots.style import (
    CATEGORY_COLOURS,
    DASHES,
    GREY,
    INK,
    MUTED,
    PALE,
    PAPER_GREY,
    SPINE,
    Unit,
    heading,
    plain_axes,
    rank_title,
    three_digits,
    tint,
    unit_for,
)
from parallab.report import CATEGORIES, Memory, Rank, Report

PER_ROW = 8
MAX_RANKS = 16
GAP = 0.12
# The part of a slot that the traced step takes where untraced steps follow it.
CURVE_PART = 0.72


def rows_needed(ranks: int) -> int:
    """Rows of panels for so many ranks."""
    return -(-min(ranks, MAX_RANKS) // PER_ROW)


def shown_ranks(report: Report) -> list[int]:
    """The ranks that have a panel: all, or the first of many and the one with the highest peak."""
    ranks = list(range(len(report.ranks)))
    if len(ranks) <= MAX_RANKS:
        return ranks
    filled = [r for r in ranks if report.ranks[r].steps]
    highest = max(filled, key=lambda r: report.ranks[r].peak.peak_bytes, default=0)
    return sorted({*ranks[: MAX_RANKS - 1], max(highest, MAX_RANKS - 1)})


class MemoryPlot:
    """The panels of all ranks on one scale.

    Attributes:
        artists: what a step changes. All else changes only where `update` returns True.
        live_artists: what changes within a step.
    """

    def __init__(
        self, figure: Figure, place: SubplotSpec, history: History, expected_bytes: float = 0
    ) -> None:
        self._ranks = shown_ranks(history.report)
        self._expected = expected(history, self._ranks)
        highest = max((memory.peak_bytes for memory in self._expected.values()), default=0)
        # A prediction knows better than a guess.
        self._top_bytes = max(1.15 * highest if highest else expected_bytes, 1.0)
        grid = place.subgridspec(rows_needed(len(self._ranks)), 1, hspace=0.5)
        parts = [self._ranks[i : i + PER_ROW] for i in range(0, len(self._ranks), PER_ROW)]
        everyone = history.report.ranks
        self._rows = [
            _Row(figure, figure.add_subplot(grid[i]), part, [everyone[at] for at in part])
            for i, part in enumerate(parts)
        ]
        self.artists = [artist for row in self._rows for artist in row.artists]
        self.live_artists = [artist for row in self._rows for artist in row.live_artists]
        _headings(figure, self._rows[0].ax, len(self._ranks), everyone, bool(self._expected))
        self._rescale()

    def update(self, history: History) -> bool:
        """Shows the history as it is. Returns whether the axes changed as well."""
        highest = max(float(history.peaks_bytes[self._ranks].max()), self._highest_gauge(history))
        rescaled = highest > self._top_bytes
        if rescaled:
            self._top_bytes = highest * 1.15
            self._rescale()
        for row in self._rows:
            row.update(history, self._unit, self._expected)
        self.point(history)
        return rescaled

    def outgrown(self, history: History) -> bool:
        """Whether a gauge points higher than the axes reach."""
        return self._highest_gauge(history) > self._top_bytes

    def point(self, history: History) -> bool:
        """Moves the gauges only. Returns whether any moved."""
        now = {gauge.rank: gauge.bytes / self._unit.size_bytes for gauge in history.gauges}
        moved = [row.point(now) for row in self._rows]
        return any(moved)

    def _highest_gauge(self, history: History) -> float:
        return max((float(g.bytes) for g in history.gauges if g.rank in self._ranks), default=0.0)

    def _rescale(self) -> None:
        self._unit = unit_for(self._top_bytes)
        for row in self._rows:
            row.ax.set_ylim(0, self._top_bytes / self._unit.size_bytes)
            row.ax.set_ylabel(self._unit.name, fontsize=8, color=INK)
            row.expect(self._expected, self._unit)


def expected(history: History, places: list[int]) -> dict[int, Memory]:
    """By place, the predicted peak of these ranks; none without a prediction."""
    if history.predicted is None or not history.predicted.steps:
        return {}
    everyone = history.report.ranks
    return {at: standing_for(history.predicted, everyone[at].rank).peak for at in places}


class _Row:
    """Up to eight ranks side by side in one Axes: rank i's panel begins at i × (1 + GAP).

    Args:
        ranks: their places among the history's ranks.
        shown: the ranks themselves, which of a large world may have any numbers.
    """

    def __init__(self, figure: Figure, ax: Axes, ranks: list[int], shown: list[Rank]) -> None:
        self.ax, self._ranks = ax, ranks
        # Many panels are narrow: only the first names the steps.
        self._labelled = len(ranks) if len(ranks) <= 4 else 1
        plain_axes(ax)
        width = len(ranks) * (1 + GAP) - GAP
        ax.set(xlim=(0, width), ylim=(0, 1), xticks=[])
        ax.spines["bottom"].set_visible(False)
        ax.yaxis.set_major_locator(MaxNLocator(4))
        foot: list[Any] = [[(x, 0), (x + 1, 0)] for x in self._starts()]
        ax.add_collection(LineCollection(foot, colors=SPINE, linewidths=1), autolim=False)
        on_top = ax.get_xaxis_transform()
        for x, rank in zip(self._starts(), shown, strict=True):
            ax.text(x, 1.03, rank_title(rank.rank, rank.device), transform=on_top, color=INK,
                    va="bottom", fontsize=8.5 if len(ranks) < 7 else 7.5)  # fmt: skip
        self._areas = [
            PolyCollection([], facecolors=colour, linewidths=0)
            for colour in CATEGORY_COLOURS.values()
        ]
        self._outlines = PolyCollection([], facecolors=PAPER_GREY, edgecolors=GREY, linewidths=0.8)
        self._gauge = Line2D([], [], marker="<", markersize=5, color=INK, linestyle="none",
                             clip_on=False)  # fmt: skip
        self._expected = PolyCollection([], linewidths=0)
        self._heights = LineCollection([], colors=INK, linewidths=1, linestyles=[DASHES])
        for collection in (self._expected, *self._areas, self._outlines, self._heights):
            ax.add_collection(collection, autolim=False)
        ax.add_line(self._gauge)
        above = offset_copy(on_top, figure, y=8.3, units="points")
        below = offset_copy(on_top, figure, y=-7, units="points")
        self._peaks, self._steps = Labels(ax, 7.5, "right", above), Labels(ax, 7.5, where=below)
        self.artists = [
            *self._areas, self._outlines, self._heights, self._peaks.artist, self._steps.artist
        ]  # fmt: skip
        self.live_artists = [self._gauge]
        self._places: list[tuple[float, float]] = []

    def _starts(self) -> Iterator[float]:
        return (i * (1 + GAP) for i in range(len(self._ranks)))

    def expect(self, peaks: dict[int, Memory], unit: Unit) -> None:
        """Shows the predicted peak of each rank, over the whole width of its panel."""
        boxes, colours, heights = [], [], []
        for x, rank in zip(self._starts(), self._ranks, strict=True):
            if rank not in peaks:
                continue
            low = 0.0
            for category, colour in CATEGORY_COLOURS.items():
                high = low + peaks[rank].at_peak.get(category, 0) / unit.size_bytes
                if high > low:
                    boxes.append([(x, low), (x, high), (x + 1, high), (x + 1, low)])
                    colours.append(tint(colour, PALE))
                low = high
            height = peaks[rank].peak_bytes / unit.size_bytes
            heights.append([(x, height), (x + 1, height)])
        self._expected.set_verts(boxes)
        self._expected.set_facecolor(colours)
        self._heights.set_segments(heights)

    def update(self, history: History, unit: Unit, expected: dict[int, Memory]) -> None:
        areas: list[list[Array]] = [[] for _ in CATEGORIES]
        outlines: list[Array] = []
        labels: list[tuple[float, int]] = []
        slots = list(history.slots)
        slot_width = 1 / max(2, len(slots))
        part = CURVE_PART if any(slot.later_peaks for slot in slots) else 0.96
        for place, (start, rank) in enumerate(zip(self._starts(), self._ranks, strict=True)):
            for i, slot in enumerate(slots):
                left, curve = start + i * slot_width, slot.curves[rank]
                middle = left + part * slot_width
                if curve is not None:
                    for area, vertices in zip(areas, curve.stacked, strict=True):
                        area.append(_placed(vertices, left, middle, unit))
                if slot.step is not None and place < self._labelled:
                    labels.append(((left + middle) / 2, slot.step))
                if slot.later_peaks:
                    line = outline([float(peaks[rank]) for peaks in slot.later_peaks])
                    outlines.append(_placed(line, middle, left + slot_width * 0.98, unit))
        for collection, found in zip(self._areas, areas, strict=True):
            collection.set_verts(found, closed=False)
        self._outlines.set_verts(outlines)
        self._write_steps(labels)
        self._write_peaks(history, unit, expected)

    def _write_steps(self, labels: list[tuple[float, int]]) -> None:
        prefix = "step " if self._labelled > 1 else ""
        self._steps.show([Label(f"{prefix}{step}", x, 0, MUTED) for x, step in labels])

    def _write_peaks(self, history: History, unit: Unit, expected: dict[int, Memory]) -> None:
        few = len(self._ranks) <= 5
        peaks: dict[int, float] = {r: history.peaks_bytes[r] for r in self._ranks}
        name = "peak"
        if expected and not history.report.steps:
            peaks, name = {r: memory.peak_bytes for r, memory in expected.items()}, "predicted"
        labels = []
        for x, rank in zip(self._starts(), self._ranks, strict=True):
            if peak := peaks[rank]:
                number = three_digits(peak / unit.size_bytes)
                words = f"{name} {number} {unit.name}" if few else number
                labels.append(Label(words, x + 1, 1, MUTED))
        self._peaks.show(labels)

    def point(self, now: dict[int, float]) -> bool:
        """Points at what each rank holds now, in the axes' unit. Returns whether that is news."""
        starts = dict(zip(self._ranks, self._starts(), strict=True))
        places = [(starts[rank] + 1.02, now[rank]) for rank in self._ranks if rank in now]
        moved = places != self._places
        self._places = places
        self._gauge.set_data([x for x, _ in places], [y for _, y in places])
        return moved


def outline(peaks: list[float]) -> Array:
    """Untraced steps side by side as one line, from 0 up to each peak and back to 0."""
    x = np.repeat(np.linspace(0, 1, len(peaks) + 1), 2)
    return np.column_stack([x, np.r_[0, np.repeat(peaks, 2), 0]])


def _placed(vertices: Array, left: float, right: float, unit: Unit) -> Array:
    return vertices * (right - left, 1 / unit.size_bytes) + (left, 0)


def _headings(
    figure: Figure, ax: Axes, shown: int, ranks: list[Rank], with_prediction: bool
) -> None:
    on_gpus = ranks[0].device.startswith("cuda")
    title = f"Memory per {'GPU' if on_gpus else 'rank'} over a step"
    if shown < len(ranks):
        title += f" ({shown} of {len(ranks)} shown)"
    heading(ax, title, above_points=43)
    handles: list[Any] = [Patch(color=c, label=name) for name, c in CATEGORY_COLOURS.items()]
    handles.append(
        Patch(facecolor=PAPER_GREY, edgecolor=GREY, linewidth=0.8, label="untraced, highest seen")
    )
    if with_prediction:
        handles.append(
            Patch(facecolor=tint(GREY, PALE), edgecolor=INK, linestyle=DASHES, label="predicted")
        )
    ax.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(handles), fontsize=7.5,
        frameon=False, labelcolor=INK, handlelength=0.9, handleheight=0.9, columnspacing=0.6,
        handletextpad=0.3, borderpad=0, borderaxespad=0,
        bbox_transform=offset_copy(ax.transAxes, figure, y=19, units="points"),
    )  # fmt: skip


def caption_on(figure: Figure, words: str) -> Text:
    """Writes where the numbers come from into the upper right corner."""
    return figure.text(
        0.985, 0.985, words, ha="right", va="top", fontsize=7.5, color=MUTED, parse_math=False
    )
