"""Communication per step: bars stacked by operation, hatched by mesh axis."""

from __future__ import annotations

from typing import Any

from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from parallab.plots.history import Bytes, History
from parallab.plots.style import (
    AXIS_HATCHES,
    GREY,
    INK,
    MUTED,
    OPERATION_COLOURS,
    Quantity,
    Unit,
    heading,
    operation_title,
    plain_axes,
    unit_for,
)
from parallab.report import OPERATIONS

# More bars than this are too thin to see: the latest are shown.
MAX_BARS = 100
QUANTITY_TITLES: dict[Quantity, str] = {
    "payload_bytes": "payload",
    "wire_bytes": "sent on the wire",
}

Key = tuple[str, str]


class CommunicationPlot:
    """What the busiest rank sends in each step.

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
        heading(ax, "Communication per step")
        self._none = ax.text(0.5, 0.5, "", transform=ax.transAxes, ha="center", color=MUTED,
                             fontsize=8.5)  # fmt: skip
        self._bars: dict[Key, PolyCollection] = {}
        self._top_bytes, self._unit = 0.0, unit_for(0)
        self._window = (0, max(1, min(steps, MAX_BARS)))
        self._shown: tuple[object, ...] = ()
        self._frame()

    @property
    def artists(self) -> list[Any]:
        """What `update` changes."""
        return [*self._bars.values(), self._none]

    def update(self, history: History) -> bool:
        """Shows the history as it is. Returns whether the axes changed as well."""
        steps = history.communication
        self._follow(len(steps))
        first = self._window[0]
        rows = [_amounts(row, self.quantity) for row in steps[first:]]
        for key in sorted({k for row in rows for k in row}, key=_order):
            if key not in self._bars:
                self._bars[key] = self._new_bars(key)
        highest = max((sum(row.values()) for row in rows), default=0.0)
        if highest > self._top_bytes or highest * 3 < self._top_bytes:
            self._top_bytes, self._unit = highest * 1.45, unit_for(highest)
        bars = stacked_bars(rows, sorted(self._bars, key=_order), first, self._unit)
        for key, verts in bars.items():
            self._bars[key].set_verts(verts)
        self._none.set_text("Nothing is sent." if steps and not highest else "")
        return self._frame()

    def _follow(self, steps: int) -> None:
        first, last = self._window
        while steps > last:
            first, last = first + MAX_BARS // 4, last + MAX_BARS // 4
        self._window = (first, last)

    def _new_bars(self, key: Key) -> PolyCollection:
        op, axis = key
        bars = PolyCollection(
            [], facecolors=OPERATION_COLOURS[op], edgecolors="white", linewidths=0,
            hatch=AXIS_HATCHES.get(axis) or None,
        )  # fmt: skip
        bars.set_animated(self._none.get_animated())
        self._ax.add_collection(bars, autolim=False)
        return bars

    def _frame(self) -> bool:
        """Limits, labels and legend. Returns whether any of them changed."""
        wanted = (self._top_bytes, self._window, self.quantity, *self._bars)
        if wanted == self._shown:
            return False
        self._shown = wanted
        self._ax.set_xlim(self._window[0] - 0.5, self._window[1] - 0.5)
        self._ax.set_ylim(0, (self._top_bytes or 1) / self._unit.size_bytes)
        # Before the first step there is no scale yet.
        self._ax.tick_params(labelleft=self._top_bytes > 0)
        name = f"{self._unit.name} {QUANTITY_TITLES[self.quantity]}" if self._top_bytes else ""
        self._ax.set_ylabel(name, fontsize=8, color=INK)
        if self._bars:
            self._legend()
        return True

    def _legend(self) -> None:
        keys = sorted(self._bars, key=_order)
        axes = {axis for _, axis in keys}
        handles = [
            Patch(facecolor=OPERATION_COLOURS[op], edgecolor="white", linewidth=0,
                  hatch=AXIS_HATCHES.get(axis) or None,
                  label=operation_title(op) + (f" · {axis}" if len(axes) > 1 else ""))
            for op, axis in keys
        ]  # fmt: skip
        self._ax.legend(
            handles=handles, loc="upper right", ncols=min(4, len(handles)), fontsize=7.5,
            frameon=False, labelcolor=INK, handlelength=1, handleheight=1, columnspacing=0.9,
            handletextpad=0.4, borderaxespad=0.1,
            title="busiest rank, axis " + ", ".join(sorted(axes)), title_fontsize=7,
            alignment="right",
        ).get_title().set_color(GREY)  # fmt: skip


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


def _order(key: Key) -> tuple[str, int]:
    op, axis = key
    return axis, OPERATIONS.index(op)
