"""How memory, bytes and time grow with the number of devices, for several strategies at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.gridspec import GridSpec
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from parallab.plots.memory import caption_on
from parallab.plots.style import (
    AXIS_COLOURS,
    BLUE,
    DARK_GREY,
    GREEN,
    GREY,
    INK,
    MUTED,
    ORANGE,
    PINK,
    SKY,
    VERMILION,
    ReportFigure,
    heading,
    in_words,
    plain_axes,
    unit_for,
)

STRATEGY_COLOURS = {
    "ddp": VERMILION, "zero1": ORANGE, "zero2": GREEN, "zero3": BLUE, "pp": PINK, "tp": SKY,
    "dp+pp": GREY, "3d": DARK_GREY,
}  # fmt: skip
WIDTH_INCHES, HEIGHT_INCHES = 9.4, 3.5


@dataclass
class Point:
    """One strategy on so many devices.

    Attributes:
        peak_bytes: of the rank with the highest peak.
        sent_bytes: axis -> what the busiest rank sends in a step, on an ideal ring.
        step_seconds: estimated; None where nobody asked.
    """

    devices: int
    peak_bytes: int
    sent_bytes: dict[str, int] = field(default_factory=dict)
    step_seconds: float | None = None


Curves = Mapping[str, Sequence[Point]]


def plot_scale(
    curves: Curves,
    chosen: str,
    words: str,
    *,
    memory_bytes: int | None = None,
    device: str = "the device",
    simulated: Iterable[tuple[str, Point]] = (),
) -> ReportFigure:
    """Memory per rank, bytes by axis, and estimated time, each over the number of devices.

    Args:
        curves: strategy -> its points, predicted and estimated.
        chosen: the strategy whose bytes are shown by axis.
        words: where the numbers come from.
        memory_bytes: what one device holds, drawn as a line.
        device: what it is called.
        simulated: points that were checked by simulation, each with its strategy.
    """
    figure = ReportFigure(WIDTH_INCHES, HEIGHT_INCHES)
    grid = figure.add_gridspec(
        1, 3, left=0.058, right=0.985, top=0.74, bottom=0.14, wspace=0.26
    )  # fmt: skip
    marks = list(simulated)
    every = sorted({point.devices for points in curves.values() for point in points})
    _draw_memory(_axes(figure, grid, 0, "Memory per rank, predicted", every), curves, chosen,
                 memory_bytes, device, marks)  # fmt: skip
    sent = _axes(figure, grid, 1, f"Sent per step, {chosen}, predicted", every)
    _draw_sent(sent, curves.get(chosen, ()), [p for name, p in marks if name == chosen])
    _draw_time(_axes(figure, grid, 2, "Time of a step, estimated", every), curves, chosen)
    _explain(figure, curves, bool(marks))
    caption_on(figure, words)
    return figure


def _axes(figure: ReportFigure, grid: GridSpec, place: int, title: str, every: list[int]) -> Axes:
    ax = figure.add_subplot(grid[place])
    plain_axes(ax)
    heading(ax, title, above_points=12)
    ax.set_xscale("log", base=2)
    ax.set_xticks(every[::2] if len(every) > 6 else every)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    ax.set_xlabel("devices", fontsize=8, color=INK, labelpad=1)
    if every:
        ax.set_xlim(every[0] / 1.25, every[-1] * 1.25)
    return ax


def _draw_memory(
    ax: Axes, curves: Curves, chosen: str, memory_bytes: int | None, device: str,
    marks: list[tuple[str, Point]],
) -> None:  # fmt: skip
    peaks = [p.peak_bytes for points in curves.values() for p in points]
    unit = unit_for(max([*peaks, memory_bytes or 0]))
    for name, points in curves.items():
        _line(ax, name, chosen, [(p.devices, p.peak_bytes / unit.size_bytes) for p in points])
    for name, point in marks:
        _mark(ax, name, point.devices, point.peak_bytes / unit.size_bytes)
    if memory_bytes:
        height = memory_bytes / unit.size_bytes
        ax.axhline(height, color=INK, linewidth=1, linestyle=(0, (4, 2)))
        ax.annotate(f"{device}: {in_words(memory_bytes)}", (1, height), (-2, 3),
                    ("axes fraction", "data"), textcoords="offset points", ha="right",
                    fontsize=7, color=INK)  # fmt: skip
    ax.set_ylabel(unit.name, fontsize=8, color=INK)
    _log_scale(ax, [size / unit.size_bytes for size in [*peaks, memory_bytes or 0]], base=2)


def _log_scale(ax: Axes, values: list[float], base: int) -> None:
    """Strategies differ by far more than a linear scale can show."""
    known = [value for value in values if value > 0] or [1.0]
    ax.set_yscale("log", base=base)
    ax.set_ylim(min(known) / 1.3, max(known) * 1.5)
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.4g}"))


def _draw_sent(ax: Axes, points: Sequence[Point], marks: list[Point]) -> None:
    totals = [sum(p.sent_bytes.values()) for p in points]
    unit = unit_for(max(totals, default=0))
    ax.set_ylabel(f"{unit.name}, busiest rank, ideal ring", fontsize=8, color=INK)
    ax.yaxis.set_major_locator(MaxNLocator(5))
    low = [0.0] * len(points)
    there = [axis for axis in AXIS_COLOURS if any(p.sent_bytes.get(axis) for p in points)]
    for axis in there:
        part = [p.sent_bytes.get(axis, 0) / unit.size_bytes for p in points]
        left = [p.devices / 1.22 for p in points]
        width = [p.devices * (1.22 - 1 / 1.22) for p in points]
        ax.bar(left, part, width, low, align="edge", color=AXIS_COLOURS[axis], linewidth=0)
        low = [a + b for a, b in zip(low, part, strict=True)]
    for point in marks:
        _mark(ax, "", point.devices, sum(point.sent_bytes.values()) / unit.size_bytes)
    ax.set_ylim(0, 1.25 * max([*low, 0]) or 1)
    if there:
        handles = [Patch(color=AXIS_COLOURS[axis], label=axis) for axis in there]
        ax.legend(handles=handles, loc="upper right", ncols=3, fontsize=7.5, frameon=False,
                  labelcolor=INK, handlelength=0.9, handleheight=0.9, columnspacing=0.9,
                  handletextpad=0.35, borderpad=0)  # fmt: skip
    else:
        ax.text(0.5, 0.5, "Nothing is sent.", transform=ax.transAxes, ha="center", color=MUTED,
                fontsize=8.5)  # fmt: skip


def _draw_time(ax: Axes, curves: Curves, chosen: str) -> None:
    longest = max(
        (p.step_seconds for ps in curves.values() for p in ps if p.step_seconds), default=1.0
    )
    unit = 1e-3 if longest < 1 else 1.0
    for name, points in curves.items():
        known = [(p.devices, p.step_seconds / unit) for p in points if p.step_seconds is not None]
        _line(ax, name, chosen, known)
    ax.set_ylabel("ms" if unit < 1 else "s", fontsize=8, color=INK)
    every = [p.step_seconds / unit for ps in curves.values() for p in ps if p.step_seconds]
    _log_scale(ax, every, base=2)


def _line(ax: Axes, name: str, chosen: str, points: list[tuple[int, float]]) -> None:
    is_chosen = name == chosen
    ax.plot(
        [x for x, _ in points], [y for _, y in points], color=STRATEGY_COLOURS.get(name, GREY),
        linewidth=2.4 if is_chosen else 1.3, marker="o", markersize=3.5 if is_chosen else 2.2,
        zorder=3 if is_chosen else 2,
    )  # fmt: skip


def _mark(ax: Axes, name: str, x: float, y: float) -> None:
    ax.plot([x], [y], marker="D", markersize=7, markerfacecolor="none", markeredgewidth=1.6,
            color=STRATEGY_COLOURS.get(name, INK), zorder=4)  # fmt: skip


def _explain(figure: ReportFigure, curves: Curves, with_marks: bool) -> None:
    handles = [
        Line2D([], [], color=STRATEGY_COLOURS.get(name, GREY), linewidth=2, label=name)
        for name in curves
    ]
    if with_marks:
        handles.append(
            Line2D([], [], color=INK, marker="D", markersize=6, markerfacecolor="none",
                   markeredgewidth=1.4, linestyle="none", label="simulated")
        )  # fmt: skip
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.052, 0.935), ncols=len(handles) or 1,
        fontsize=8, frameon=False, labelcolor=INK, handlelength=1.6, columnspacing=1.2,
        handletextpad=0.5, borderpad=0,
    )  # fmt: skip
