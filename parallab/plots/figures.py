"""Report -> Figure. Pure functions; a notebook shows what they return.

>>> plot_report(report)                          # doctest: +SKIP
>>> plot_memory(report).savefig("memory.png")    # doctest: +SKIP
"""

from __future__ import annotations

from matplotlib.artist import Artist
from matplotlib.gridspec import SubplotSpec

from parallab.plots.communication import CommunicationPlot
from parallab.plots.history import History
from parallab.plots.loss import LossPlot
from parallab.plots.memory import MemoryPlot, caption_on, rows_needed, shown_ranks
from parallab.plots.style import Quantity, ReportFigure, caption
from parallab.predict.memory import model_states
from parallab.report import Report

WIDTH_INCHES = 9.4


class RunFigure:
    """Memory above, communication and loss below: one figure for a live run and for a Report."""

    def __init__(
        self,
        history: History,
        total_steps: int,
        *,
        caption: str,
        quantity: Quantity = "wire_bytes",
    ) -> None:
        rows = rows_needed(len(history.report.ranks))
        height = 3.2 + 1.9 * rows
        self.figure = ReportFigure(WIDTH_INCHES, height)
        grid = self.figure.add_gridspec(
            2, 2, left=0.058, right=0.985, top=1 - 0.78 / height, bottom=0.4 / height,
            height_ratios=(1.55 * rows, 1.42), width_ratios=(1.5, 1), hspace=0.42, wspace=0.17,
        )  # fmt: skip
        model, plan = history.report.model, history.report.plan
        expected_bytes = max(
            sum(model_states(model, plan, rank).values()) for rank in shown_ranks(history.report)
        )
        self.memory = MemoryPlot(self.figure, grid[0, :], history, 1.3 * expected_bytes)
        self.communication = CommunicationPlot(self.figure, grid[1, 0], total_steps, quantity)
        self.loss = LossPlot(self.figure, grid[1, 1], total_steps)
        caption_on(self.figure, caption)

    @property
    def artists(self) -> list[Artist]:
        """What `update` changes."""
        return [*self.memory.artists, *self.communication.artists, *self.loss.artists]

    def update(self, history: History) -> bool:
        """Shows the history as it is. Returns whether any axes changed as well."""
        plots = (self.memory, self.communication, self.loss)
        changed = [plot.update(history) for plot in plots]
        return any(changed)


def plot_report(report: Report, quantity: Quantity = "wire_bytes") -> ReportFigure:
    """Memory per GPU, communication per step and loss, as one figure."""
    history = History.of(report)
    plots = RunFigure(history, report.steps, caption=caption(report), quantity=quantity)
    plots.update(history)
    return plots.figure


def plot_memory(report: Report) -> ReportFigure:
    """Memory per GPU, stacked by category, over the last steps that are known by category."""
    rows = rows_needed(len(report.ranks))
    height = 1.3 + 1.9 * rows
    figure = ReportFigure(WIDTH_INCHES, height)
    grid = figure.add_gridspec(
        1, 1, left=0.058, right=0.985, top=1 - 0.78 / height, bottom=0.25 / height
    )
    history = History.of(report)
    MemoryPlot(figure, grid[0], history).update(history)
    caption_on(figure, caption(report))
    return figure


def plot_communication(report: Report, quantity: Quantity = "wire_bytes") -> ReportFigure:
    """Bytes that the busiest rank sends in each step, by operation and mesh axis.

    Args:
        quantity: "payload_bytes", the tensors that the operations work on, or "wire_bytes", what an
            ideal ring sends for them.
    """
    figure, grid = _small_figure()
    CommunicationPlot(figure, grid, report.steps, quantity).update(History.of(report))
    caption_on(figure, caption(report))
    return figure


def plot_loss(report: Report) -> ReportFigure:
    """The global loss of each step."""
    figure, grid = _small_figure()
    LossPlot(figure, grid, report.steps).update(History.of(report))
    caption_on(figure, caption(report))
    return figure


def _small_figure() -> tuple[ReportFigure, SubplotSpec]:
    figure = ReportFigure(6.4, 3.2)
    return figure, figure.add_gridspec(1, 1, left=0.1, right=0.98, top=0.82, bottom=0.13)[0]
