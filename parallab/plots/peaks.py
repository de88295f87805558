"""The peak of each kind of rank, stacked by category, against the memory of a card."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import offset_copy

from parallab.plots.memory import caption_on
from parallab.plots.style import (
    CATEGORY_COLOURS,
    GRID,
    INK,
    MUTED,
    VERMILION,
    ReportFigure,
    Unit,
    caption,
    heading,
    in_words,
    plain_axes,
    unit_for,
)
from parallab.predict.parts import held_stages
from parallab.report import Rank, Report

WIDTH_INCHES, LEAST_ROWS, MAX_ROWS = 9.4, 8, 16


@dataclass
class Kind:
    """Ranks whose peaks are alike.

    Attributes:
        first: the first of them.
        count: how many they are.
        together: whether they follow one another.
    """

    first: Rank
    count: int
    together: bool = True

    @property
    def name(self) -> str:
        """The ranks in words."""
        if self.count == 1:
            return f"rank {self.first.rank}"
        if self.together:
            return f"ranks {self.first.rank}–{self.first.rank + self.count - 1}"
        return f"rank {self.first.rank} + {self.count - 1:,} alike"


def kinds(report: Report) -> list[Kind]:
    """The ranks of a Report, those that are alike as one."""
    represents = report.environment.get("represents", {})
    found: dict[tuple[object, ...], Kind] = {}
    for rank in report.ranks:
        memory, count = rank.peak, int(represents.get(str(rank.rank), 1))
        stage = rank.coords.get("pp")
        key = (stage, memory.peak_bytes, *sorted(memory.at_peak.items()))
        kind = found.get(key)
        if kind is None:
            # A rank that stands for others tells how many; which, is known of a whole stage.
            stage_ranks = report.plan.dp * report.plan.tp
            whole = count == stage_ranks and rank.rank % stage_ranks == 0
            alone = whole or count in {1, report.plan.devices}
            found[key] = Kind(rank, count, alone)
        else:
            kind.together = kind.together and rank.rank == kind.first.rank + kind.count
            kind.count += count
    return list(found.values())


def plot_peaks(
    report: Report, memory_bytes: int | None = None, device: str = "the device"
) -> ReportFigure:
    """The peak of each kind of rank, by category.

    Args:
        memory_bytes: what one device holds, drawn as a line.
        device: what it is called.
    """
    every = kinds(report)
    shown = sorted(
        sorted(every, key=lambda k: -k.first.peak.peak_bytes)[:MAX_ROWS], key=lambda k: k.first.rank
    )
    height = 1.15 + 0.21 * max(LEAST_ROWS, len(shown))
    figure = ReportFigure(WIDTH_INCHES, height)
    grid = figure.add_gridspec(
        1, 1, left=0.158, right=0.985, top=1 - 0.72 / height, bottom=0.4 / height
    )
    ax = figure.add_subplot(grid[0])
    highest = max((kind.first.peak.peak_bytes for kind in shown), default=0)
    unit = unit_for(max(highest, memory_bytes or 0))
    apart = max(0.0, LEAST_ROWS / 2 - len(shown)) / 2
    plain_axes(ax)
    ax.grid(visible=False, axis="y")
    ax.grid(visible=True, axis="x", color=GRID, linewidth=0.6)
    top = 1.16 * max(highest, memory_bytes or 0, 1) / unit.size_bytes
    ax.set(ylim=(len(shown) - 0.5 + apart, -0.5 - apart), xlim=(0, top))
    ax.xaxis.set_major_locator(MaxNLocator(8))
    ax.set_xlabel(f"{unit.name}, {report.source}", fontsize=8, color=INK, labelpad=1)
    _draw_bars(ax, report, shown, unit, memory_bytes)
    _explain(figure, ax, shown)
    title = f"{report.source.capitalize()} peak per rank"
    if len(shown) < len(every):
        title += f" (the {len(shown)} highest of {len(every)} kinds)"
    heading(ax, title, above_points=38)
    if memory_bytes:
        _draw_card(ax, memory_bytes, device, unit)
    caption_on(figure, caption(report))
    return figure


def _draw_bars(
    ax: Axes, report: Report, shown: list[Kind], unit: Unit, memory_bytes: int | None
) -> None:
    names = []
    for row, kind in enumerate(shown):
        memory, left = kind.first.peak, 0.0
        for category, colour in CATEGORY_COLOURS.items():
            width = memory.at_peak.get(category, 0) / unit.size_bytes
            if width:
                ax.barh(row, width, 0.66, left, color=colour, linewidth=0)
            left += width
        over = memory_bytes is not None and memory.peak_bytes > memory_bytes
        ax.annotate(
            in_words(memory.peak_bytes), (left, row), (4, 0), textcoords="offset points",
            va="center", fontsize=8, color=VERMILION if over else INK,
            weight="bold" if over else "normal",
        )  # fmt: skip
        stages = held_stages(report.plan, kind.first.coords.get("pp", 0))
        stage = f", stage {'/'.join(map(str, stages))}" if report.plan.pp > 1 else ""
        names.append(kind.name + stage)
    ax.set_yticks(range(len(shown)), names, fontsize=8 if len(shown) <= LEAST_ROWS else 7)


def _draw_card(ax: Axes, memory_bytes: int, device: str, unit: Unit) -> None:
    x = memory_bytes / unit.size_bytes
    left_half = x < 0.5 * ax.get_xlim()[1]
    ax.axvline(x, color=INK, linewidth=1.2)
    # Above the bars, which may reach to either side of the line.
    ax.annotate(
        f"{device}: {in_words(memory_bytes)}", (x, 1), (0, 1.5), ("data", "axes fraction"),
        textcoords="offset points", ha="left" if left_half else "right", fontsize=8, color=INK,
    )  # fmt: skip


def _explain(figure: ReportFigure, ax: Axes, shown: list[Kind]) -> None:
    """The categories that there are."""
    there = {c for kind in shown for c, size in kind.first.peak.at_peak.items() if size}
    handles = [Patch(color=v, label=c) for c, v in CATEGORY_COLOURS.items() if c in there]
    if not handles:
        ax.text(0.5, 0.5, "nothing is held", transform=ax.transAxes, ha="center", color=MUTED)
        return
    ax.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(handles),
        fontsize=7.5, frameon=False, labelcolor=INK, handlelength=0.9, handleheight=0.9,
        columnspacing=0.9, handletextpad=0.35, borderpad=0, borderaxespad=0,
        bbox_transform=offset_copy(ax.transAxes, figure, y=11, units="points"),
    )  # fmt: skip
