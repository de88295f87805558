"""The bubble's formulas, the planned orders, and spans as a run would record them."""

import pytest

from parallab.models.spec import Model
from parallab.plan import Plan, why_not
from parallab.predict.bubble import Bubble, bubble, measured_bubble
from parallab.report import Memory, Span, Step
from parallab.schedules import orders, planned
from parallab.stages import SCHEDULES

DEEP = Model("nano", layers=32)
UNITS = {"forward": 1, "backward": 2, "input": 1, "weight": 1}


def pipeline(schedule, pp, m):
    return Plan("pp", pp=pp, schedule=schedule, micro_batches=m)


def shares(plan):
    found = bubble(plan)
    return found.idle_of_ideal, found.idle_of_total


@pytest.mark.parametrize(
    ("schedule", "pp", "m", "of_ideal", "of_total"),
    [
        ("gpipe", 4, 4, 3 / 4, 3 / 7),
        ("gpipe", 4, 32, 3 / 32, 3 / 35),
        ("1f1b", 4, 8, 3 / 8, 3 / 11),
        ("loopedbfs", 4, 8, 3 / 16, 3 / 19),
        ("interleaved", 4, 8, 3 / 16, 3 / 19),
        ("interleaved", 4, 6, 3 / 12, 3 / 15),  # one round of six
        ("interleaved", 4, 1, 3 / 2 * 2, 3 / 4),  # one micro-batch has no use for a second stage
        ("zb", 4, 8, 1 / 16, 1 / 17),
        ("zbv", 4, 8, 1 / 16, 1 / 17),
        ("dualpipev", 4, 8, 1 / 16, 1 / 17),
        ("zbv", 2, 1, 2 / 3, 2 / 5),
    ],
)
def test_bubble(schedule, pp, m, of_ideal, of_total):
    assert shares(pipeline(schedule, pp, m)) == pytest.approx((of_ideal, of_total))


def test_naive_model_parallelism_has_one_rank_at_work():
    assert bubble(Plan("mp", pp=4)) == Bubble(idle_of_total=3 / 4, idle_of_ideal=3)


@pytest.mark.parametrize("plan", [Plan("ddp", 4), Plan("single"), Plan("tp", 2)])
def test_no_pipeline_no_bubble(plan):
    assert bubble(plan) is None
    assert measured_bubble(plan, []) is None


def test_other_axes_change_nothing():
    assert shares(Plan("3d", dp=2, pp=4, tp=2, micro_batches=8)) == (3 / 8, 3 / 11)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("pp", [2, 3, 4, 8])
def test_the_planned_order_agrees(schedule, pp):
    """Also that waiting stops growing when twice as many micro-batches as ranks are there."""
    counts = [
        m
        for m in (1, 2, 3, pp, 2 * pp, 2 * pp + 1, 3 * pp, 20, 45, 8 * pp)
        if why_not(DEEP, strategy="pp", pp=pp, schedule=schedule, micro_batches=m) is None
    ]
    assert len(counts) >= 3
    for m in counts:
        slots = planned(orders(schedule, pp, m), UNITS)
        whole = pp * max(row[-1].end for row in slots)
        work = sum(slot.end - slot.start for row in slots for slot in row)
        expected = (whole - work) / work, (whole - work) / whole
        assert shares(pipeline(schedule, pp, m)) == pytest.approx(expected), m


@pytest.mark.parametrize("pp", [2, 3, 4, 8])
def test_formulas_of_schedules_with_two_stages_a_rank(pp):
    for rounds in (1, 2, 3):
        m = rounds * pp
        for schedule in ("loopedbfs", "interleaved"):
            assert shares(pipeline(schedule, pp, m))[0] == pytest.approx((pp - 1) / (2 * m))
        assert shares(pipeline("zb", pp, m))[0] == pytest.approx((pp - 1) / (6 * m))
        for schedule in ("zbv", "dualpipev"):
            if rounds > 1:
                assert shares(pipeline(schedule, pp, m))[0] == pytest.approx((pp - 1) / (6 * m))


@pytest.mark.parametrize("schedule", ["zb", "zbv", "dualpipev"])
def test_where_the_first_stage_waits_with_its_backward_the_bubble_is_the_same(schedule):
    """torch leaves all of stage 0's backward to the weight pass: nobody waits for its input."""

    def as_torch(work):
        if work.stage or work.kind not in ("input", "weight"):
            return UNITS[work.kind]
        return 2 if work.kind == "weight" else 0

    ends = [
        max(row[-1].end for row in planned(orders(schedule, 4, 8), seconds))
        for seconds in (UNITS, as_torch)
    ]
    assert ends[0] == ends[1]


def test_many_micro_batches_are_quick_to_answer():
    """The planned order is never longer than two micro-batches a rank."""
    assert shares(pipeline("zbv", 2, 65_536))[0] == pytest.approx(1 / (6 * 65_536))


def step(begin, *passes):
    spans = [Span(kind, 0, 0, start, end) for kind, start, end in passes]
    return Step(0, None, 9.0, False, Memory(0), spans=spans, begin=begin)


TWO = Plan("pp", pp=2, micro_batches=2)


def test_measured_bubble():
    """Rank 0 works 1..2, 4..6 and 7..8, rank 1 2..7, by one clock: 5 of 14 seconds are lost."""
    ranks = [
        step(101.0, ("forward", 0, 1), ("backward", 3, 5), ("weight", 6, 7)),
        step(100.5, ("forward", 1.5, 2.5), ("backward", 2.5, 6.5)),
    ]
    found = measured_bubble(TWO, ranks)
    assert found == Bubble(idle_of_total=pytest.approx(5 / 14), idle_of_ideal=pytest.approx(5 / 9))


def test_time_in_two_spans_counts_once_and_other_spans_not_at_all():
    ranks = [
        step(0.0, ("backward", 2, 6), ("backward", 3, 4), ("forward", 0, 1), ("backward", 5, 7)),
        step(0.0, ("forward", 0, 8), ("optimizer", 8, 20), ("all_reduce", 2, 30)),
    ]
    assert measured_bubble(TWO, ranks) == Bubble(pytest.approx(2 / 16), pytest.approx(2 / 14))


def test_a_planned_order_that_ran_as_planned():
    plan = pipeline("interleaved", 4, 8)
    kinds = {"input": "backward"}
    ranks = [
        step(50.0 - rank, *((kinds.get(w.kind, w.kind), a + rank, b + rank) for w, a, b in row))
        for rank, row in enumerate(planned(orders("interleaved", 4, 8), UNITS))
    ]
    found = measured_bubble(plan, ranks)
    assert (found.idle_of_ideal, found.idle_of_total) == pytest.approx(shares(plan))


@pytest.mark.parametrize(
    "second", [step(None, ("forward", 0, 1)), step(0.0), step(0.0, ("optimizer", 0, 1))]
)
def test_nothing_to_measure(second):
    assert measured_bubble(TWO, [step(0.0, ("forward", 0, 1)), second]) is None
    assert measured_bubble(TWO, []) is None
