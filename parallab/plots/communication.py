"""Communication per step: bars stacked by operation, hatched by mesh axis."""

from __future__ import annotations

from typing import Any

from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import offset_copy

from parallab.plots.boxes import as_one_path
from parallab.plots.history import Bytes, History
from parallab.plots.style import (
    AXIS_HATCHES,
    DARK_GREY,
    DASHES,
    GREY,
    INK,
    MUTED,
    OPERATION_COLOURS,
    PALE,
    Quantity,
    Unit,
    heading,
    operation_title,
    plain_axes,
    small_number,
    tint,
    unit_for,
)
from parallab.report import OPERATIONS

# More bars than this are too thin to see: the latest are shown.
MAX_BARS = 100
PER_ROW = 3
QUANTITY_TITLES: dict[Quantity, str] = {
    "payload_bytes": "payload",
    "wire_bytes": "sent on the wire",
}
LEGEND: dict[str, Any] = dict(
    fontsize=7.5, frameon=False, labelcolor=INK, handlelength=1, handleheight=1,
    columnspacing=0.9, handletextpad=0.4, borderpad=0,
)  # fmt: skip

Key = tuple[str, str]


class CommunicationPlot:
    """What the busiest rank sends in each step; pale behind it, what it is predicted to send.

    Attributes:
        artists: what `update` changes. All else changes only where `update` returns True.
        quantity: which bytes are shown; `update` follows a change.
    """

    def __init__(
        self, figure: Figure, place: SubplotSpec, steps: int, quantity: Quantity = "wire_bytes"
    ) -> None:
        self.quantity: Quantity = quantity
        self._ax = ax = figure.add_subplot(place)
        plain_axes(ax)
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        ax.yaxis.set_major_locator(MaxNLocator(5))
        ax.set_xlabel("step", fontsize=8, color=INK, labelpad=1)
        heading(ax, "Communication")
        self._beside_heading = offset_copy(ax.transAxes, figure, y=16, units="points")
        self._none = ax.text(0.5, 0.5, "", transform=ax.transAxes, ha="center", color=MUTED,
                             fontsize=8.5)  # fmt: skip
        self._expected = PolyCollection([], linewidths=0)
        ax.add_collection(self._expected, autolim=False)
        self._height = Line2D([], [], color=INK, linewidth=1, linestyle=DASHES)
        ax.add_line(self._height)
        self._predicted: dict[Key, float] = {}
        self._bars: dict[Key, PathCollection] = {}
        self._top_bytes, self._unit = 0.0, unit_for(0)
        self._window = (0, max(1, min(steps, MAX_BARS)))
        self._by_axis: dict[str, float] = {}
        self._kind = ""
        self._legends: list[Legend] = []
        self._shown: tuple[object, ...] = ()
        self._frame()

    @property
    def artists(self) -> list[Any]:
        """What `update` changes."""
        return [*self._bars.values(), self._height, self._none]

    def update(self, history: History) -> bool:
        """Shows the history as it is. Returns whether the axes changed as well."""
        steps = history.communication
        self._follow(len(steps))
        first = self._window[0]
        rows = [_amounts(row, self.quantity) for row in steps[first:]]
        for key in sorted({k for row in rows for k in row}, key=_order):
            if key not in self._bars:
                self._bars[key] = self._new_bars(key)
        known = history.predicted.communication() if history.predicted is not None else {}
        sent = {key: values for key, values in known.items() if key[0] != "recv"}
        self._predicted = _amounts(sent, self.quantity)
        highest = max(sum(row.values()) for row in (self._predicted, *rows))
        # Room for the legend's rows.
        room = 1.45 if len({op for op, _ in self._keys}) <= PER_ROW else 1.65
        if highest * (room - 0.1) > self._top_bytes or highest * 3 < self._top_bytes:
            self._top_bytes, self._unit = highest * room, unit_for(highest)
        self._by_axis = by_axis(rows[-1] if rows else self._predicted)
        self._kind = "" if rows or not self._predicted else "predicted, "
        bars = stacked_bars(rows, sorted(self._bars, key=_order), first, self._unit)
        for key, verts in bars.items():
            # A hatch is costly to draw, and drawn once for each path: so all bars are one.
            self._bars[key].set_paths([as_one_path(verts)])
        self._none.set_text("Nothing is sent." if steps and not highest else "")
        return self._frame()

    @property
    def _keys(self) -> set[Key]:
        """Operations and axes of what was sent or is predicted."""
        return {*self._bars, *self._predicted}

    def _follow(self, steps: int) -> None:
        first, last = self._window
        while steps > last:
            first, last = first + MAX_BARS // 4, last + MAX_BARS // 4
        self._window = (first, last)

    def _new_bars(self, key: Key) -> PathCollection:
        op, axis = key
        bars = PathCollection(
            [], facecolors=OPERATION_COLOURS[op], edgecolors="white", linewidths=0,
            hatch=AXIS_HATCHES.get(axis) or None,
        )  # fmt: skip
        bars.set_animated(self._none.get_animated())
        self._ax.add_collection(bars, autolim=False)
        return bars

    def _frame(self) -> bool:
        """Limits, labels and legend. Returns whether any of them changed."""
        wanted = (self._top_bytes, self._window, self.quantity, self._kind, *self._bars,
                  *self._predicted.items(), *self._by_axis.items())  # fmt: skip
        if wanted == self._shown:
            return False
        self._shown = wanted
        self._ax.set_xlim(self._window[0] - 0.5, self._window[1] - 0.5)
        self._ax.set_ylim(0, (self._top_bytes or 1) / self._unit.size_bytes)
        # Before the first step there is no scale yet.
        self._ax.tick_params(labelleft=self._top_bytes > 0)
        name = f"{self._unit.name} {QUANTITY_TITLES[self.quantity]}" if self._top_bytes else ""
        self._ax.set_ylabel(name, fontsize=8, color=INK)
        self._expect()
        if self._keys:
            self._explain()
        return True

    def _expect(self) -> None:
        """Shows what is predicted, as high in every step: a warm step's bytes are always the
        same.
        """
        first, last = self._window[0] - 0.5, self._window[1] - 0.5
        low, boxes, keys = 0.0, [], sorted(self._predicted, key=_order)
        for key in keys:
            high = low + self._predicted[key] / self._unit.size_bytes
            boxes.append([(first, low), (first, high), (last, high), (last, low)])
            low = high
        self._expected.set_verts(boxes)
        self._expected.set_facecolor([tint(OPERATION_COLOURS[op], PALE) for op, _ in keys])
        self._height.set_data([first, last] if keys else [], [low, low] if keys else [])

    def _explain(self) -> None:
        """Operations within the axes, beside the heading what each mesh axis carries."""
        for legend in self._legends:
            legend.remove()
        ops = sorted({op for op, _ in self._keys}, key=OPERATIONS.index)
        names = [operation_title(op) for op in ops]
        handles = [Patch(color=OPERATION_COLOURS[op]) for op in ops]
        operations = Legend(
            self._ax, handles, names, loc="upper right", ncols=min(PER_ROW, len(ops)),
            borderaxespad=0.3, title_fontsize=7,
            title=f"{self._kind}busiest rank: {self._amounts()}", alignment="right", **LEGEND,
        )  # fmt: skip
        operations.get_title().set_color(GREY)
        handles = [
            Patch(facecolor=DARK_GREY, edgecolor="white", linewidth=0, hatch=AXIS_HATCHES.get(axis))
            for axis in self._by_axis
        ]
        axes = Legend(
            self._ax, handles, list(self._by_axis), loc="center right", ncols=len(AXIS_HATCHES),
            bbox_to_anchor=(1, 1), borderaxespad=0, **LEGEND,
            bbox_transform=self._beside_heading,
        )  # fmt: skip
        self._legends = [operations, axes]
        for legend in self._legends:
            self._ax.add_artist(legend)

    def _amounts(self) -> str:
        numbers = [
            f"{a} {small_number(v / self._unit.size_bytes)}" for a, v in self._by_axis.items()
        ]
        return f"{', '.join(numbers)} {self._unit.name}" if numbers else "nothing"


def by_axis(row: dict[Key, float]) -> dict[str, float]:
    """Bytes of one step on each mesh axis."""
    axes = sorted({axis for _, axis in row}, key=_axis_order)
    return {axis: sum(size for (_, a), size in row.items() if a == axis) for axis in axes}


def stacked_bars(
    rows: list[dict[Key, float]], keys: list[Key], first_step: int, unit: Unit
) -> dict[Key, list[list[tuple[float, float]]]]:
    """Rectangles of each key, one upon the other in each step, in the given unit."""
    bars: dict[Key, list[list[tuple[float, float]]]] = {key: [] for key in keys}
    for step, row in enumerate(rows, first_step):
        low = 0.0
        for key in keys:
            if amount := row.get(key, 0.0) / unit.size_bytes:
                left, right, high = step - 0.38, step + 0.38, low + amount
                bars[key].append([(left, low), (left, high), (right, high), (right, low)])
                low = high
    return bars


def _amounts(row: Bytes, quantity: Quantity) -> dict[Key, float]:
    return {key: float(values[quantity]) for key, values in row.items() if values[quantity]}


def _order(key: Key) -> tuple[int, int]:
    op, axis = key
    return _axis_order(axis), OPERATIONS.index(op)


def _axis_order(axis: str) -> int:
    return [*AXIS_HATCHES, axis].index(axis)
