"""Who sends how much to whom in a step: a cell for each pair of ranks, coloured by mesh axis."""

from __future__ import annotations

import math

from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import offset_copy

from parallab.plan import Plan
from parallab.plots.history import History
from parallab.plots.labels import Label, Labels
from parallab.plots.style import (
    AXIS_COLOURS,
    GREY,
    INK,
    MUTED,
    ORANGE,
    SPINE,
    heading,
    in_words,
    plain_axes,
    small_number,
    tint,
    unit_for,
)

# With more ranks than this a number does not fit into a cell.
MAX_NUMBERED = 8


class TrafficPlot:
    """The bytes that each rank (row) sends to each other (column) in the latest step.

    Attributes:
        artists: what a step changes. All else changes only where `update` returns True.
    """

    def __init__(self, figure: Figure, place: SubplotSpec, plan: Plan) -> None:
        self._plan = plan
        self._numbered = plan.devices <= MAX_NUMBERED
        self._ax = ax = figure.add_subplot(place)
        plain_axes(ax)
        ax.grid(visible=False)
        ax.spines[:].set_visible(True)
        ax.spines[:].set_color(SPINE)
        edge = plan.devices - 0.5
        ax.set(xlim=(-0.5, edge), ylim=(edge, -0.5))
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(min(plan.devices, 8), integer=True, min_n_ticks=1))
        ax.set_xlabel("to rank", fontsize=8, color=INK, labelpad=1)
        ax.set_ylabel("from rank", fontsize=8, color=INK, labelpad=1)
        self._heading = heading(ax, "Traffic")
        self._none = ax.text(0.5, 0.5, "", transform=ax.transAxes, ha="center", color=MUTED,
                             fontsize=8.5)  # fmt: skip
        self._cells = PolyCollection([], edgecolors="white", linewidths=0.4)
        ax.add_collection(self._cells, autolim=False)
        self._numbers = Labels(ax, 6.5 if plan.devices <= 4 else 5.5)
        self.artists = [self._cells, self._numbers.artist, self._none]
        self._explain(figure)

    def _explain(self, figure: Figure) -> None:
        handles = [
            Patch(color=colour, label=axis)
            for axis, colour in AXIS_COLOURS.items()
            if getattr(self._plan, axis) > 1
        ]
        if not handles:
            self._ax.set(xticks=[], yticks=[], xlabel="", ylabel="")
            return
        self._ax.legend(
            handles=handles, loc="center right", bbox_to_anchor=(1, 1), ncols=len(handles),
            fontsize=7.5, frameon=False, labelcolor=INK, handlelength=0.9, handleheight=0.9,
            columnspacing=0.7, handletextpad=0.3, borderpad=0, borderaxespad=0,
            bbox_transform=offset_copy(self._ax.transAxes, figure, y=16, units="points"),
        )  # fmt: skip

    def update(self, history: History) -> bool:
        """Shows the history as it is. Returns whether the axes changed as well."""
        step = history.report.warm_step
        if step is None:
            return False
        amounts = {
            (rank.rank, to): size
            for rank in history.report.ranks
            for to, size in rank.steps[step].traffic.items()
            if size
        }
        highest = max(amounts.values(), default=0)
        unit = unit_for(highest)
        cells, colours, labels = [], [], []
        for (sender, to), size in amounts.items():
            colour = AXIS_COLOURS.get(axis_between(self._plan, sender, to), GREY)
            part = strength(size, highest)
            left, right, top, foot = to - 0.5, to + 0.5, sender - 0.5, sender + 0.5
            cells.append([(left, top), (left, foot), (right, foot), (right, top)])
            colours.append(tint(colour, part))
            ink = "white" if part > 0.7 and colour != ORANGE else INK
            labels.append(Label(small_number(size / unit.size_bytes), to, sender, ink))
        self._cells.set_verts(cells)
        self._cells.set_facecolor(colours)
        self._numbers.show(labels if self._numbered else [])
        self._none.set_text("" if amounts else "Nothing is sent.")
        return bool(amounts) and self._name_scale(highest)

    def _name_scale(self, highest: int) -> bool:
        """Says what numbers or tints stand for. Returns whether that is new."""
        if self._numbered:
            text: Text = self._heading
            words = f"Traffic, {unit_for(highest).name}"
        else:
            text = self._ax.xaxis.label
            words = f"to rank; strongest {in_words(highest)}, each paler ½"
        if text.get_text() == words:
            return False
        text.set_text(words)
        return True


def axis_between(plan: Plan, one: int, other: int) -> str:
    """The mesh axis along which two ranks lie apart, "world" where it is not only one."""
    a, b = plan.coordinates(one), plan.coordinates(other)
    differ = [axis for axis in a if a[axis] != b[axis]]
    return differ[0] if len(differ) == 1 else "world"


def strength(size: int, highest: int) -> float:
    """How strong a cell's colour is: 1 for the highest amount, a fifth less for each halving."""
    return max(0.2, 1 - 0.2 * math.floor(math.log2(highest / size)))
