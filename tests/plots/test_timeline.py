"""The timeline draws what was measured, on one clock, and the planned schedule behind it."""

import math

import pytest

from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.plots import History, plot_timeline
from parallab.plots.gantt import Bar, gantt, merged, stairs
from parallab.plots.labels import width_ems
from parallab.plots.style import GREY, SPAN_COLOURS, ReportFigure, tint
from parallab.plots.timeline import (
    MEMORY,
    PASSES,
    PLANNED,
    WIRE,
    TimelinePlot,
    bubble_words,
    timeline_inches,
)
from parallab.predict.bubble import Bubble
from parallab.report import Memory, Rank, Report, Span, Step
from parallab.stages import SCHEDULES
from tests.synthetic import fake_report

MIB = 2**20


def two_ranks(begins=(100.0, 101.0)) -> list[Step]:
    """GPipe on two ranks: forward takes 1 s, backward 2 s, and the wire half a second.

    The second rank begins a second later, so by its own clock everything is a second earlier.
    """
    first = [
        Span("forward", 0, 0, 0.0, 1.0),
        Span("forward", 0, 1, 1.0, 2.0),
        Span("backward", 0, 0, 6.0, 8.0),
        Span("backward", 0, 1, 8.0, 10.0),
        Span("optimizer", 0, 0, 10.0, 11.0),
        Span("communication", 0, 0, 1.0, 1.5),
        Span("communication", 0, 1, 2.0, 2.5),
    ]
    second = [
        Span("forward", 1, 0, 0.5, 1.5),
        Span("forward", 1, 1, 1.5, 2.5),
        Span("backward", 1, 0, 2.5, 4.5),
        Span("backward", 1, 1, 4.5, 6.5),
        Span("communication", 1, 0, 4.5, 5.0),
    ]
    marks = [
        {"seconds": [0.0, 1.0, 2.0, 8.0], "bytes": [4 * MIB, 6 * MIB, 8 * MIB, 4 * MIB]},
        {"seconds": [0.5], "bytes": [2 * MIB]},
    ]
    return [
        Step(0, None, 11.0, False, Memory(0, marks=held), [], spans, begin)
        for spans, held, begin in zip((first, second), marks, begins, strict=True)
    ]


PLAN = Plan("pp", devices=2, micro_batches=2, batch=2, schedule="gpipe")


def report_of(*steps: list[Step], plan: Plan = PLAN) -> Report:
    ranks = [Rank(r, {}, "cpu", "host", [s[r] for s in steps]) for r in range(plan.devices)]
    return Report("measured", Model("nano"), plan, {}, ranks)


def timeline(report: Report) -> TimelinePlot:
    history = History.of(report)
    figure = ReportFigure(9, 3)
    plot = TimelinePlot(figure, figure.add_gridspec(1, 1)[0], history)
    plot.update(history)
    return plot


def boxes(collection) -> list[list[float]]:
    """Left, right, top and foot of each rectangle, by time."""
    found = [
        [*box[[0, 2], 0], *box[[0, 1], 1]]
        for path in collection.get_paths()
        for box in path.vertices.reshape(-1, 5, 2)
    ]
    return sorted(found, key=lambda box: (box[2], box[0]))


def words_in(plot: TimelinePlot) -> str:
    labels = (plot._title, plot._words, plot._amounts, plot._numbers)
    texts = [label.words for some in labels for label in some.shown]
    return "\n".join([*texts, *(t.get_text() for t in plot._ax.get_legend().texts)])


# One clock.


def test_all_ranks_are_laid_on_the_first_ones_clock():
    step = gantt(report_of(two_ranks()), 0, [0, 1])
    assert step.one_clock
    assert step.seconds == 12.0
    assert [bar for bar in step.bars if bar.row == 1] == [
        Bar(1, "forward", 0, 0, 1.5, 2.5),
        Bar(1, "forward", 0, 1, 2.5, 3.5),
        Bar(1, "backward", 0, 0, 3.5, 5.5),
        Bar(1, "backward", 0, 1, 5.5, 7.5),
    ]
    assert step.communication == [[(1.0, 1.5), (2.0, 2.5)], [(5.5, 6.0)]]
    assert step.held[1][0].tolist() == [1.5]


def test_without_a_shared_clock_each_rank_begins_at_zero_and_the_figure_says_so():
    report = report_of(two_ranks(begins=(100.0, None)))
    step = gantt(report, 0, [0, 1])
    assert not step.one_clock
    assert step.bars[5] == Bar(1, "forward", 0, 0, 0.5, 1.5)
    assert "each rank's own clock" in words_in(timeline(report))
    assert "own clock" not in words_in(timeline(report_of(two_ranks())))


def test_intervals_merge_where_they_touch():
    assert merged([(3, 4), (0, 1), (0.5, 2), (4, 5)]) == [(0, 2), (3, 5)]
    assert merged([(0, 1), (1.2, 2)], apart=0.25) == [(0, 2)]
    assert merged([]) == []


def test_held_memory_is_stairs():
    area = stairs([1.0, 3.0], [5.0, 2.0], 4.0)
    assert area.tolist() == [[1, 0], [1, 5], [3, 5], [3, 2], [4, 2], [4, 0]]


# What was planned.


def test_the_plan_is_the_same_passes_without_the_wire():
    step = gantt(report_of(two_ranks()), 0, [0, 1])
    assert step.planned == [
        Bar(0, "forward", 0, 0, 0.0, 1.0),
        Bar(0, "forward", 0, 1, 1.0, 2.0),
        Bar(0, "backward", 0, 0, 5.0, 7.0),
        Bar(0, "backward", 0, 1, 7.0, 9.0),
        Bar(1, "forward", 0, 0, 1.0, 2.0),
        Bar(1, "forward", 0, 1, 2.0, 3.0),
        Bar(1, "backward", 0, 0, 3.0, 5.0),
        Bar(1, "backward", 0, 1, 5.0, 7.0),
    ]


def test_planned_passes_take_the_mean_of_their_kind_and_stage():
    ranks = two_ranks()
    ranks[0].spans[1].end = 4.0
    planned = gantt(report_of(ranks), 0, [0, 1]).planned
    assert [(bar.start, bar.end) for bar in planned[:2]] == [(0.0, 2.0), (2.0, 4.0)]
    assert [(bar.start, bar.end) for bar in planned[4:6]] == [(2.0, 3.0), (4.0, 5.0)]


def test_each_pipelines_plan_starts_with_its_own_first_forward():
    plan = Plan("dp+pp", devices=4, micro_batches=2, batch=4, schedule="gpipe")
    first, second = two_ranks()
    late = [
        Step(0, None, 11.0, False, Memory(0), [], s.spans, s.begin + 3) for s in (first, second)
    ]
    # dp varies faster than pp: ranks 0 and 2 are one pipeline, 1 and 3 the other.
    step = gantt(report_of([first, late[0], second, late[1]], plan=plan), 0, [0, 1, 2, 3])
    begins = {row: min(b.start for b in step.planned if b.row == row) for row in range(4)}
    assert begins == {0: 0.0, 1: 3.0, 2: 1.0, 3: 4.0}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_is_planned_pass_for_pass(schedule):
    report = fake_report("pp", 4, 3, schedule=schedule, micro_batches=8)
    step = gantt(report, 2, [0, 1, 2, 3])
    passes = [bar[:4] for bar in step.bars if bar.kind != "optimizer"]
    assert sorted(passes) == sorted(bar[:4] for bar in step.planned)
    assert {bar.place for bar in step.planned} == ({0} if schedule in SCHEDULES[:2] else {0, 1})


def test_nothing_is_planned_without_a_pipeline_or_without_all_its_passes():
    assert gantt(fake_report("ddp", 2, 3), 2, [0, 1]).planned == []
    ranks = two_ranks()
    ranks[1].spans = [s for s in ranks[1].spans if s.kind != "backward"]
    assert gantt(report_of(ranks), 0, [0, 1]).planned == []


# What is drawn.


def test_bars_lie_in_their_ranks_row():
    plot = timeline(report_of(two_ranks()))
    hair = 12 * 1.12 / 1200
    drawn = boxes(plot._passes)
    assert len(drawn) == 9
    assert drawn[0] == pytest.approx([0, 1 - hair, *PASSES])
    assert drawn[-1] == pytest.approx([5.5, 7.5 - hair, 1 + PASSES[0], 1 + PASSES[1]])
    outlines = boxes(plot._planned)
    assert len(outlines) == 8
    assert outlines[2] == pytest.approx([5, 7, *PLANNED])
    wire = boxes(plot._wire)
    assert len(wire) == 3
    assert wire[0] == pytest.approx([1, 1.5, *WIRE])
    assert wire[2] == pytest.approx([5.5, 6, 1 + WIRE[0], 1 + WIRE[1]])


def test_short_steps_are_drawn_in_milliseconds():
    report = fake_report("pp", 2, 3)
    plot = timeline(report)
    first = min(report.ranks[0].steps[2].spans, key=lambda span: span.start)
    assert boxes(plot._passes)[0][0] == pytest.approx(1000 * first.start)
    assert plot._unit.get_text() == "ms"
    assert timeline(report_of(two_ranks()))._unit.get_text() == "s"


def test_kinds_have_colours_and_unknown_kinds_are_grey():
    ranks = two_ranks()
    ranks[0].spans.append(Span("reduce", 0, 0, 11.0, 12.0))
    plot = timeline(report_of(ranks))
    colours = {tuple(c[:3]) for c in plot._passes.get_facecolor().tolist()}
    known = [SPAN_COLOURS[kind] for kind in ("forward", "backward", "optimizer")]
    assert colours == {tint(colour, 1) for colour in [*known, GREY]}


def test_a_ranks_second_stage_is_paler():
    plot = timeline(fake_report("pp", 2, 3, schedule="zbv", micro_batches=4))
    assert len(plot._passes.get_paths()) == 2 * 3 + 1
    assert "paler: second stage" in words_in(plot)
    assert "second stage" not in words_in(timeline(fake_report("pp", 2, 3)))


def test_micro_batches_are_numbered_where_there_is_room():
    shown = timeline(report_of(two_ranks()))._numbers.shown
    assert [label.words for label in shown] == ["0", "1"] * 4
    assert shown[0].x == 0.5
    assert timeline(fake_report("ddp", 2, 3))._numbers.shown == []
    many = fake_report("pp", 2, 3, micro_batches=200, schedule="gpipe")
    assert timeline(many)._numbers.shown == []


def test_widths_of_numbers_grow_with_their_digits():
    assert 0.4 < width_ems("8") < 0.7
    assert 1.8 < width_ems("88") / width_ems("8") < 2.5


def test_the_memory_strips_share_one_scale_and_name_their_highest():
    plot = timeline(report_of(two_ranks()))
    first, second = (path.vertices for path in plot._held.get_paths())
    high, foot = MEMORY
    assert first[:, 1].min() == pytest.approx(high)
    assert second[:, 1].min() == pytest.approx(1 + foot - (foot - high) / 4)
    assert first[:, 0].max() == pytest.approx(12)
    assert [label.words for label in plot._amounts.shown] == ["8.00 MiB", "2.00 MiB"]


def test_gpipe_holds_every_micro_batch_and_1f1b_a_few():
    """The made-up steps are true to this, so their pictures show it."""
    highest = {}
    for schedule in ("gpipe", "1f1b"):
        report = fake_report("pp", 4, 3, schedule=schedule, micro_batches=8)
        _, held = gantt(report, 2, [0, 1, 2, 3]).held[3]
        highest[schedule] = (held.max() - held.min()) / (held[held > held.min()].min() - held.min())
    assert highest == {"gpipe": 8, "1f1b": 1}


# Which step, and its words.


def test_the_latest_untraced_step_is_shown():
    report = fake_report("pp", 2, 7)
    assert [step.traced for step in report.ranks[0].steps] == [True, True] + [False] * 4 + [True]
    assert "Timeline of step 5 (untraced)" in words_in(timeline(report))
    assert "Timeline of step 1 (traced)" in words_in(timeline(fake_report("pp", 2, 2)))


def test_the_bubble_is_named_in_both_conventions():
    words = bubble_words(Bubble(0.412, 0.7), Bubble(3 / 11, 3 / 8))
    assert words == "bubble: idle/total 41 % (formula 27 %), idle/ideal 70 % (38 %)"
    # 12 s of work on two ranks that take 10 s from the first pass to the last.
    words = words_in(timeline(report_of(two_ranks())))
    assert "bubble: idle/total 40 % (formula 33 %), idle/ideal 67 % (50 %)" in words
    assert "bubble" not in words_in(timeline(fake_report("ddp", 2, 3)))


def test_weights_and_the_wire_are_explained_only_where_there_are_any():
    assert "weight" not in words_in(timeline(fake_report("pp", 2, 3)))
    assert "weight" in words_in(timeline(fake_report("pp", 2, 3, schedule="zb", micro_batches=4)))
    alone = words_in(timeline(fake_report("single", 1, 3)))
    assert "communication" not in alone
    assert "as planned" not in alone


def test_a_step_that_nobody_timed_is_an_empty_chart():
    report = report_of([Step(0, None, None, False, Memory(0)) for _ in range(2)])
    assert "nothing was timed" in words_in(timeline(report))
    assert plot_timeline(report)._repr_png_()[0].startswith(b"\x89PNG")


def test_many_ranks_get_a_lower_row_each():
    assert timeline_inches(4) == pytest.approx(1.36)
    assert timeline_inches(8) == pytest.approx(2.4)
    assert timeline_inches(32) == timeline_inches(16) == pytest.approx(3.2)
    report = fake_report("ddp", 32, 3, model="nano")
    assert len(timeline(report)._held.get_paths()) == 16


# Live.


def test_the_time_axis_changes_seldom():
    plan = Plan("ddp", devices=2)
    history = History(Model("nano"), plan)
    figure = ReportFigure(9, 3)
    plot = TimelinePlot(figure, figure.add_gridspec(1, 1)[0], history)

    def changed(seconds: float, traced: bool = False) -> bool:
        spans = [Span("forward", 0, 0, 0, seconds)]
        history._add_step([Step(0, None, seconds, traced, Memory(0), [], spans, 0.0)] * 2)
        return plot.update(history)

    assert not plot.update(history)
    assert [changed(s) for s in (2.0, 2.1, 1.9, 2.2, 1.5)] == [True, False, False, False, False]
    assert plot._ax.get_xlim() == (0, pytest.approx(2.24))
    assert changed(2.3)
    assert changed(0.9)
    assert plot._unit.get_text() == "s"
    assert changed(0.2)
    assert plot._ax.get_xlim() == (0, pytest.approx(224))
    # A traced step is not shown once there is one that is not.
    assert not changed(9.0, traced=True)
    assert not plot.update(history)


def test_the_axis_forgets_how_long_traced_steps_took():
    history = History.of(fake_report("pp", 2, 2))
    figure = ReportFigure(9, 3)
    plot = TimelinePlot(figure, figure.add_gridspec(1, 1)[0], history)
    assert plot.update(history)
    slow = plot._ax.get_xlim()[1]
    history._add_step([rank.steps[2] for rank in fake_report("pp", 2, 3).ranks])
    assert plot.update(history)
    assert math.isclose(plot._ax.get_xlim()[1] / slow, 1 / 1.5, rel_tol=0.05)
