"""Reports side by side: a row for each, and every column on one scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import offset_copy

from parallab.compare.changes import Pace, pace
from parallab.compare.collection import Named
from parallab.plots.style import (
    AXIS_COLOURS,
    CATEGORY_COLOURS,
    DASHES,
    GREY,
    GRID,
    INK,
    MUTED,
    PALE,
    PAPER_GREY,
    Quantity,
    ReportFigure,
    heading,
    in_words,
    plain_axes,
    tint,
    unit_for,
)
from parallab.predict.bubble import bubble
from parallab.report import Report

WIDTH_INCHES, ROW_INCHES, LEAST_ROWS = 9.4, 0.36, 2
LONGEST_NAME = 27
BAR, ROOM = 0.58, 1.34

Draw = Callable[[Axes, list[Report]], None]


def plot_comparison(
    reports: Sequence[Named], quantity: Quantity = "wire_bytes", marks: Sequence[str] = ()
) -> ReportFigure:
    """Memory by category, bytes by axis, time and bubble of each Report, on shared scales.

    A column that no Report knows anything of is left out.

    Args:
        quantity: which bytes are shown by axis.
        marks: what stands before each name, such as A and B.

    Raises:
        ValueError: there are no Reports.
    """
    if not reports:
        raise ValueError("There is no Report to draw.")
    only = [report for _, report in reports]
    columns: list[tuple[float, Draw]] = [(3.4, _memory), (1.8, _sent(quantity))]
    if any(pace(report) for report in only):
        columns.append((1.5, _time))
    if any(bubble(report.plan) for report in only):
        columns.append((1.1, _bubble))
    height = 1.2 + ROW_INCHES * max(LEAST_ROWS, len(only))
    figure = ReportFigure(WIDTH_INCHES, height)
    grid = figure.add_gridspec(
        1, len(columns), left=0.225, right=0.99, top=1 - 0.73 / height, bottom=0.43 / height,
        wspace=0.14, width_ratios=[width for width, _ in columns],
    )  # fmt: skip
    for place, (_, draw) in enumerate(columns):
        ax = figure.add_subplot(grid[place])
        _rows(ax, len(only))
        draw(ax, only)
        if not place:
            _name(ax, reports, marks)
    return figure


def _rows(ax: Axes, count: int) -> None:
    plain_axes(ax)
    ax.grid(visible=False, axis="y")
    ax.grid(visible=True, axis="x", color=GRID, linewidth=0.6)
    spare = max(0, LEAST_ROWS - count) / 2
    ax.set(ylim=(count - 0.5 + spare, -0.5 - spare), yticks=[])
    ax.xaxis.set_major_locator(MaxNLocator(4))


def _name(ax: Axes, reports: Sequence[Named], marks: Sequence[str]) -> None:
    """What each row is called, and below that where its figures come from."""
    for row, (name, report) in enumerate(reports):
        mark = marks[row] if row < len(marks) else ""
        words = name.removesuffix(f", {report.source}")  # the next line says so
        words = words if len(words) <= LONGEST_NAME else f"{words[: LONGEST_NAME - 1]}…"
        _beside(ax, row, words, 5, INK, 8)
        _beside(ax, row, report.source, -6, MUTED, 7)
        if mark:
            ax.annotate(
                mark, (0, row), (-150, 0), ("axes fraction", "data"),
                textcoords="offset points", ha="left", va="center", fontsize=10, weight="bold",
                color=INK,
            )  # fmt: skip


def _beside(ax: Axes, row: int, words: str, up: float, colour: str, size: float) -> None:
    ax.annotate(
        words, (0, row), (-6, up), ("axes fraction", "data"), textcoords="offset points",
        ha="right", va="center", fontsize=size, color=colour, parse_math=False,
    )  # fmt: skip


# The columns.


def _memory(ax: Axes, reports: list[Report]) -> None:
    """The fullest rank by category, and a dot for the peak of every rank."""
    ranks = [max(report.ranks, key=lambda rank: rank.peak.peak_bytes) for report in reports]
    unit = unit_for(max(rank.peak.peak_bytes for rank in ranks))
    for row, (report, rank) in enumerate(zip(reports, ranks, strict=True)):
        memory, left = rank.peak, 0.0
        for category, colour in CATEGORY_COLOURS.items():
            width = memory.at_peak.get(category, 0) / unit.size_bytes
            _bar(ax, row, width, left, colour, report)
            left += width
        whole = memory.peak_bytes / unit.size_bytes
        if not memory.at_peak:
            ax.barh(row, whole, BAR, color=PAPER_GREY, edgecolor=GREY, linewidth=0.8)
        _outline(ax, row, whole, report)
        _write(ax, row, whole, in_words(memory.peak_bytes))
        peaks = [other.peak.peak_bytes / unit.size_bytes for other in report.ranks]
        if len(peaks) > 1:
            ax.plot(peaks, [row + 0.41] * len(peaks), ".", color=MUTED, markersize=2.5)
    ax.set_xlim(0, ROOM * max(rank.peak.peak_bytes for rank in ranks) / unit.size_bytes or 1)
    there = {c for rank in ranks for c, size in rank.peak.at_peak.items() if size}
    _title(ax, "Memory of the fullest rank", f"{unit.name}; dots: the peak of every rank")
    _explain(ax, {c: v for c, v in CATEGORY_COLOURS.items() if c in there})


def _sent(quantity: Quantity) -> Draw:
    def draw(ax: Axes, reports: list[Report]) -> None:
        totals = [_by_axis(report, quantity) for report in reports]
        highest = max(sum(total.values()) for total in totals)
        unit = unit_for(highest)
        for row, (report, total) in enumerate(zip(reports, totals, strict=True)):
            left = 0.0
            for axis, size in total.items():
                _bar(ax, row, size / unit.size_bytes, left, AXIS_COLOURS.get(axis, GREY), report)
                left += size / unit.size_bytes
            _outline(ax, row, left, report)
            _write(ax, row, left, in_words(sum(total.values())) if left else "nothing")
        ax.set_xlim(0, ROOM * 1.12 * highest / unit.size_bytes or 1)
        kind = "payload" if quantity == "payload_bytes" else "on the wire"
        _title(ax, "Sent in a step", f"{unit.name}, {kind}")
        there = {axis for total in totals for axis in total}
        known = {axis: colour for axis, colour in AXIS_COLOURS.items() if axis in there}
        _explain(ax, known | dict.fromkeys(sorted(there - known.keys()), GREY))

    return draw


def _by_axis(report: Report, quantity: Quantity) -> dict[str, int]:
    """Bytes of the busiest rank, in the order of the axes' colours."""
    totals: dict[str, int] = {}
    for (op, axis), row in report.communication().items():
        if op != "recv" and row[quantity]:
            totals[axis] = totals.get(axis, 0) + row[quantity]
    order = list(AXIS_COLOURS)
    return dict(sorted(totals.items(), key=lambda item: (*order, item[0]).index(item[0])))


def _time(ax: Axes, reports: list[Report]) -> None:
    """The median step as a dot, half of the steps as a line."""
    paces = [pace(report) for report in reports]
    longest = max(max(p.median, p.high) for p in paces if p is not None)
    scale, unit = (1e3, "ms") if longest < 10 else (1.0, "s")
    for row, found in enumerate(paces):
        if found is None:
            _nothing(ax, row, "no time")
            continue
        ax.plot([found.low * scale, found.high * scale], [row, row], color=GREY, linewidth=3,
                solid_capstyle="round")  # fmt: skip
        ax.plot([found.median * scale], [row], "o", color=INK, markersize=5)
        _write(ax, row, max(found.median, found.high) * scale, _median(found, scale))
    ax.set_xlim(0, 1.55 * longest * scale or 1)
    _title(ax, "Time of a step", f"{unit}: median, middle half")


def _median(found: Pace, scale: float) -> str:
    value = found.median * scale
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def _bubble(ax: Axes, reports: list[Report]) -> None:
    """How idle a pipeline's ranks were, and as a tick what the schedule says."""
    for row, report in enumerate(reports):
        formula, found = bubble(report.plan), report.bubble
        if formula is None:
            _nothing(ax, row, "no pipeline")
            continue
        planned = 100 * formula.idle_of_total
        value = 100 * found.idle_of_total if found is not None else planned
        if found is not None:
            ax.barh(row, value, BAR, color=GREY, linewidth=0)
        ax.plot([planned, planned], [row - 0.4, row + 0.4], color=INK, linewidth=1.5)
        _write(ax, row, max(value, planned), f"{value:.0f} %")
    ax.set_xlim(0, 135)
    ax.set_xticks([0, 50, 100])
    _title(ax, "Idle", "%, tick: by schedule")


# What they are made of.


def _bar(ax: Axes, row: int, width: float, left: float, colour: str, report: Report) -> None:
    if width:
        shade = colour if report.source == "measured" else tint(colour, PALE)
        ax.barh(row, width, BAR, left, color=shade, linewidth=0)


def _outline(ax: Axes, row: int, width: float, report: Report) -> None:
    """What was not measured is pale, with a broken line around it."""
    if width and report.source != "measured":
        ax.barh(row, width, BAR, facecolor="none", edgecolor=INK, linewidth=0.8, linestyle=DASHES)


def _write(ax: Axes, row: int, x: float, words: str) -> None:
    ax.annotate(words, (x, row), (4, 0), textcoords="offset points", va="center", fontsize=7.5,
                color=INK)  # fmt: skip


def _nothing(ax: Axes, row: int, words: str) -> None:
    ax.annotate(words, (0, row), (3, 0), ("axes fraction", "data"), textcoords="offset points",
                va="center", fontsize=7.5, color=MUTED)  # fmt: skip


def _title(ax: Axes, words: str, unit: str) -> None:
    heading(ax, words, above_points=34)
    ax.set_xlabel(unit, fontsize=7.5, color=INK, labelpad=1)


def _explain(ax: Axes, colours: dict[str, str]) -> None:
    handles = [Patch(color=colour, label=name) for name, colour in colours.items()]
    if not handles:
        return
    columns = len(handles) if len(handles) <= 4 else -(-len(handles) // 2)
    above = offset_copy(ax.transAxes, cast(Figure, ax.figure), y=3, units="points")
    ax.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1), bbox_transform=above,
        ncols=columns, fontsize=6.8, frameon=False, labelcolor=INK, handlelength=0.8,
        handleheight=0.8, columnspacing=0.5, handletextpad=0.3, borderpad=0, borderaxespad=0,
        labelspacing=0.2,
    )  # fmt: skip
