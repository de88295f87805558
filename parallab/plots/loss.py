"""The loss of each step."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from parallab.plots.history import History
from parallab.plots.style import BLUE, INK, heading, plain_axes

MAX_POINTS = 400


class LossPlot:
    """The global loss over the steps.

    Attributes:
        artists: what `update` changes. All else changes only where `update` returns True.
    """

    def __init__(self, figure: Figure, place: SubplotSpec, steps: int) -> None:
        self._ax = ax = figure.add_subplot(place)
        plain_axes(ax)
        ax.set(xlim=(-0.5, max(1, steps) - 0.5), ylim=(0, 1))
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.yaxis.set_major_locator(MaxNLocator(5))
        ax.tick_params(labelleft=False)
        ax.set_xlabel("step", fontsize=8, color=INK, labelpad=1)
        ax.set_ylabel("nats per token", fontsize=8, color=INK)
        heading(ax, "Loss")
        self._line = Line2D([], [], color=BLUE, linewidth=1.4, marker="o", markersize=3)
        ax.add_line(self._line)
        self._limits: tuple[float, float] | None = None
        self.artists = [self._line]

    def update(self, history: History) -> bool:
        """Shows the history as it is. Returns whether the axes changed as well."""
        losses = np.asarray(history.losses, dtype=float)
        kept = np.arange(0, len(losses), max(1, len(losses) // MAX_POINTS))
        self._line.set_data(kept, losses[kept])
        self._line.set_marker("o" if len(losses) <= 40 else "None")
        finite = losses[np.isfinite(losses)]
        if not len(finite):
            return False
        low, high = float(finite.min()), float(finite.max())
        if self._limits and self._limits[0] <= low and high <= self._limits[1]:
            return False
        # Room downwards, since that is where it goes.
        room = max(high - low, 0.1 * abs(high), 1e-3)
        self._limits = (low - 0.5 * room, high + 0.15 * room)
        self._ax.set_ylim(*self._limits)
        self._ax.tick_params(labelleft=True)
        return True
