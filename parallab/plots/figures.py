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
from parallab.plots.timeline import TimelinePlot, timeline_inches
from parallab.plots.traffic import TrafficPlot
from parallab.predict.memory import model_states
from parallab.report import Report

WIDTH_INCHES = 9.4


class RunFigure:
    """Memory above, the timeline below it, then communication, traffic and loss.

    One figure for a live run and for a Report.
    """

    def __init__(
        self,
        history: History,
        total_steps: int,
        *,
        caption: str,
        quantity: Quantity = "wire_bytes",
    ) -> None:
        ranks = len(history.report.ranks)
        memory, timeline = 1.65 * rows_needed(ranks), timeline_inches(ranks)
        # Row by row from the top, in inches; between them is room for ticks and headings.
        heights = [memory, 0.72, timeline, 0.6, 1.45]
        top, foot = 0.78, 0.4
        height = sum(heights) + top + foot
        self.figure = ReportFigure(WIDTH_INCHES, height)
        grid = self.figure.add_gridspec(
            5, 1, left=0.058, right=0.985, top=1 - top / height, bottom=foot / height,
            height_ratios=heights, hspace=0,
        )  # fmt: skip
        last = grid[4].subgridspec(1, 3, width_ratios=(1.45, 1, 1), wspace=0.24)
        model, plan = history.report.model, history.report.plan
        expected_bytes = max(
            sum(model_states(model, plan, rank).values()) for rank in shown_ranks(history.report)
        )
        self.memory = MemoryPlot(self.figure, grid[0], history, 1.3 * expected_bytes)
        self.timeline = TimelinePlot(self.figure, grid[2], history)
        self.communication = CommunicationPlot(self.figure, last[0], total_steps, quantity)
        self.traffic = TrafficPlot(self.figure, last[1], plan)
        self.loss = LossPlot(self.figure, last[2], total_steps)
        caption_on(self.figure, caption)

    @property
    def artists(self) -> list[Artist]:
        """What `update` changes."""
        return [artist for plot in self._plots for artist in plot.artists]

    def update(self, history: History) -> bool:
        """Shows the history as it is. Returns whether any axes changed as well."""
        changed = [plot.update(history) for plot in self._plots]
        return any(changed)

    @property
    def _plots(self) -> tuple[MemoryPlot, TimelinePlot, CommunicationPlot, TrafficPlot, LossPlot]:
        return self.memory, self.timeline, self.communication, self.traffic, self.loss


def plot_report(
    report: Report, quantity: Quantity = "wire_bytes", predicted: Report | None = None
) -> ReportFigure:
    """Memory per GPU, the timeline of a step, communication, traffic and loss, as one figure.

    Args:
        quantity: which bytes the communication shows.
        predicted: what to lay under memory and communication.
    """
    history = History.of(report, predicted=predicted)
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


def plot_timeline(report: Report) -> ReportFigure:
    """What each rank did when in the latest untraced step, and the memory that it held."""
    rows = timeline_inches(len(report.ranks))
    height = rows + 1.1
    figure = ReportFigure(WIDTH_INCHES, height)
    grid = figure.add_gridspec(
        1, 1, left=0.058, right=0.985, top=1 - 0.8 / height, bottom=0.3 / height
    )
    history = History.of(report)
    TimelinePlot(figure, grid[0], history).update(history)
    caption_on(figure, caption(report))
    return figure


def plot_traffic(report: Report) -> ReportFigure:
    """Bytes that each rank sends to each other in the last step, on ideal rings."""
    figure, grid = _small_figure()
    TrafficPlot(figure, grid, report.plan).update(History.of(report))
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
