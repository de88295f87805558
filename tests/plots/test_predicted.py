"""A prediction lies under what is measured: the same figures, paler, with a line on top."""

from __future__ import annotations

from matplotlib.collections import LineCollection, PolyCollection

from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.plots import History, plot_report
from parallab.plots.communication import CommunicationPlot
from parallab.plots.figures import RunFigure
from parallab.plots.history import standing_for
from parallab.plots.style import ReportFigure
from parallab.report import Memory, Rank, Report, Step
from tests.plots.look import words_in
from tests.synthetic import fake_prediction, fake_report

MIB = 2**20


def run_figure(plan: Plan, predicted: Report | None) -> RunFigure:
    history = History(Model("mini"), plan, predicted=predicted)
    figure = RunFigure(history, 6, caption="predicted · mini")
    figure.update(history)
    return figure


def test_before_a_run_each_ranks_predicted_peak_is_drawn_and_named():
    plan = Plan("zero3", devices=2)
    predicted = fake_prediction(Model("mini"), plan)
    plots = run_figure(plan, predicted)
    peaks = [rank.peak for rank in predicted.ranks]
    ax = plots.figure.axes[0]
    (lines,) = [c for c in ax.collections if isinstance(c, LineCollection)][1:]
    heights = [segment[0, 1] * MIB for segment in lines.get_segments()]
    assert [round(h) for h in heights] == [memory.peak_bytes for memory in peaks]
    boxes = next(c for c in ax.collections if isinstance(c, PolyCollection))
    assert len(boxes.get_paths()) == sum(len([v for v in m.at_peak.values() if v]) for m in peaks)
    written = [label.words for label in plots.memory._rows[0]._peaks.shown]
    assert written == [f"predicted {m.peak_bytes / MIB:.1f} MiB" for m in peaks]
    assert "predicted, busiest rank: dp" in words_in(plots.figure)


def test_the_scale_follows_a_prediction():
    plan = Plan("ddp", devices=2)
    predicted = fake_prediction(Model("mini"), plan)
    top = run_figure(plan, predicted).figure.axes[0].get_ylim()[1] * MIB
    assert predicted.peak_bytes < top < 1.3 * predicted.peak_bytes


def test_predicted_bytes_reach_as_high_as_those_that_are_sent():
    report = fake_report("zero3", devices=4, steps=6)
    predicted = fake_prediction(report.model, report.plan)
    for quantity, sent in (
        ("wire_bytes", report.wire_bytes),
        ("payload_bytes", report.payload_bytes),
    ):
        figure = ReportFigure(4, 3)
        plot = CommunicationPlot(figure, figure.add_gridspec(1, 1)[0], 6, quantity)
        plot.update(History.of(report, predicted=predicted))
        assert round(plot._height.get_ydata()[0] * MIB) == sent
        assert "predicted" not in words_in(figure)


def test_without_a_prediction_nothing_is_drawn():
    figure = run_figure(Plan("ddp", devices=2), None)
    assert figure.memory._rows[0]._heights.get_segments() == []
    assert len(figure.communication._height.get_xdata()) == 0
    assert "predicted" not in words_in(figure.figure).replace("predicted · mini", "")


def test_a_report_with_its_prediction():
    report = fake_report("3d", devices=8, steps=6)
    words = words_in(plot_report(report, predicted=fake_prediction(report.model, report.plan)))
    assert "predicted" in words
    assert "busiest rank: dp" in words


def test_one_rank_of_a_kind_stands_for_the_others():
    plan = Plan("3d", 16, dp=4, pp=2, tp=2)
    ranks = [
        Rank(r, plan.coordinates(r), "cpu", "", [Step(0, None, None, False, Memory(r))])
        for r in (0, 1, 6, 8, 15)
    ]
    report = Report("predicted", Model("mini"), plan, {}, ranks)
    assert [standing_for(report, r).rank for r in (0, 2, 3, 7, 8, 9, 13)] == [0, 0, 1, 6, 8, 8, 15]
