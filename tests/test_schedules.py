"""Orders as the papers draw them, and as torch runs them."""

from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import pytest

from parallab.models.spec import Model
from parallab.parallel import pipeline
from parallab.plan import why_not
from parallab.schedules import Pass, in_flight, orders, planned
from parallab.stages import SCHEDULES, rank_of_stage, stage_count, stage_indices

DEEP = Model("nano", layers=32)
UNITS = {"forward": 1, "backward": 2, "input": 1, "weight": 1}
LETTER = {"forward": "F", "backward": "B", "input": "I", "weight": "W"}
CASES = [(schedule, ranks) for schedule in SCHEDULES for ranks in (2, 3, 4, 8)]


def accepted(schedule, ranks, counts):
    """The numbers of micro-batches with which a Plan may be made."""
    choices = dict(strategy="pp", pp=ranks, schedule=schedule)
    return [m for m in counts if why_not(DEEP, **choices, micro_batches=m) is None]


def some_counts(schedule, ranks):
    counts = accepted(schedule, ranks, [1, 2, 3, ranks, ranks + 1, 2 * ranks, 2 * ranks + 1, 20])
    assert len(counts) >= 2
    return counts


# Rank by rank; stage.micro-batch where a rank has two stages.
DRAWN = {
    ("gpipe", 2, 3): ["F0 F1 F2 B0 B1 B2"] * 2,
    ("1f1b", 4, 5): [
        "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4",
        "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4",
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4",
    ],
    ("loopedbfs", 2, 2): [
        "F0.0 F0.1 F2.0 F2.1 B2.1 B2.0 B0.1 B0.0",
        "F1.0 F1.1 F3.0 F3.1 B3.1 B3.0 B1.1 B1.0",
    ],
    ("interleaved", 2, 4): [
        "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3",
        "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3",
    ],
    ("zb", 2, 2): [
        "F0.0 F0.1 F2.0 F2.1 I2.0 W2.0 I2.1 W2.1 I0.0 W0.0 I0.1 W0.1",
        "F1.0 F1.1 F3.0 I3.0 F3.1 I3.1 W3.0 I1.0 W3.1 I1.1 W1.0 W1.1",
    ],
    ("zbv", 2, 3): [
        "F0.0 F0.1 F0.2 F3.0 I3.0 W3.0 F3.1 I3.1 W3.1 I0.0 W0.0 F3.2 I3.2 W3.2 I0.1 W0.1 I0.2 W0.2",
        "F1.0 F2.0 F1.1 F2.1 I2.0 W2.0 F1.2 I1.0 W1.0 F2.2 I2.1 W2.1 I1.1 I2.2 I1.2 W1.1 W2.2 W1.2",
    ],
    ("dualpipev", 2, 4): [
        "F0.0 F0.1 F0.2 F3.0 I3.0 W3.0 F3.1 F0.3 B3.1 F3.2 B0.0 B3.2 F3.3 B0.1 B3.3"
        " I0.2 W0.2 I0.3 W0.3",
        "F1.0 F2.0 F1.1 F2.1 F1.2 B2.0 F2.2 B1.0 F1.3 B2.1 F2.3 B1.1 B2.2 B1.2 I2.3 I1.3 W2.3 W1.3",
    ],
}


def name(work, with_stage):
    place = f"{work.stage}." if with_stage else ""
    return f"{LETTER[work.kind]}{place}{work.micro_batch}"


@pytest.mark.parametrize("case", DRAWN, ids=lambda case: case[0])
def test_small_orders(case):
    schedule, ranks, _ = case
    two = stage_count(ranks, schedule) > ranks
    assert [" ".join(name(work, two) for work in order) for order in orders(*case)] == DRAWN[case]


def run_torch(schedule, rank, ranks, micro_batches):
    """What torch's schedule has the stages of one rank do: its own loop, with stages that note."""
    done = []
    count = stage_count(ranks, schedule)

    def stage(index):
        def backward(i, loss, full_backward=True, last_backward=False):
            done.append(Pass("backward" if full_backward else "input", index, i))

        return SimpleNamespace(
            stage_index=index, num_stages=count, group_size=ranks, group_rank=rank, submod=None,
            is_first=index == 0, is_last=index == count - 1, has_backward=True,
            get_fwd_recv_ops=lambda i: [], get_fwd_send_ops=lambda i: [],
            get_bwd_recv_ops=lambda i: [], get_bwd_send_ops=lambda i: [],
            set_local_fwd_input=lambda output, i: None, set_local_bwd_input=lambda output, i: None,
            get_local_bwd_output=lambda i: None, perform_reduce_grad=lambda factor: None,
            forward_one_chunk=lambda i, *_, **__: done.append(Pass("forward", index, i)),
            backward_one_chunk=backward,
            backward_weight_one_chunk=lambda i, **_: done.append(Pass("weight", index, i)),
        )  # fmt: skip

    stages = [stage(index) for index in stage_indices(schedule, rank, ranks, count)]
    kind = pipeline.SCHEDULES[schedule]
    made = kind(stages[0] if count == ranks else stages, micro_batches, loss_fn=lambda *_: None)
    made._initialize_stage = made._initialize_stages = lambda *_: None
    nothing = [()] * micro_batches
    made._step_microbatches(nothing, [{}] * micro_batches, nothing, [])
    return done


@pytest.mark.parametrize(("schedule", "ranks"), CASES)
def test_torch_runs_these_orders(schedule, ranks):
    for m in some_counts(schedule, ranks):
        ours = orders(schedule, ranks, m)
        for rank in range(ranks):
            assert ours[rank] == run_torch(schedule, rank, ranks, m), (m, rank)


@pytest.mark.parametrize(("schedule", "ranks"), CASES)
def test_each_pass_happens_once_on_the_rank_of_its_stage(schedule, ranks):
    count = stage_count(ranks, schedule)
    for m in some_counts(schedule, ranks):
        made = Counter()
        for rank, order in enumerate(orders(schedule, ranks, m)):
            assert {rank_of_stage(schedule, work.stage, ranks) for work in order} == {rank}
            made.update(order)
        assert set(made.values()) == {1}
        every = [(stage, i) for stage in range(count) for i in range(m)]
        assert sorted(w[1:] for w in made if w.kind == "forward") == every
        assert sorted(w[1:] for w in made if w.kind in ("backward", "input")) == every
        halves = [sorted(w[1:] for w in made if w.kind == kind) for kind in ("input", "weight")]
        assert halves[0] == halves[1]
        assert bool(halves[0]) == (schedule in ("zb", "zbv", "dualpipev"))


def drawing(slots):
    """One cell per unit of time: what begins there, == while it lasts, .. where the rank waits."""
    rows = []
    total = max(row[-1].end for row in slots)
    for row in slots:
        cells = [".."] * int(total)
        for work, start, end in row:
            cells[int(start) : int(end)] = [name(work, False), *["=="] * int(end - start - 1)]
        rows.append(" ".join(cells))
    return rows


# Worked out by hand.
TIMELINES = {
    ("gpipe", 3, 3): [
        "F0 F1 F2 .. .. .. .. .. .. B0 == B1 == B2 ==",
        ".. F0 F1 F2 .. .. .. B0 == B1 == B2 == .. ..",
        ".. .. F0 F1 F2 B0 == B1 == B2 == .. .. .. ..",
    ],
    ("1f1b", 2, 3): [
        "F0 F1 .. .. B0 == F2 B1 == .. B2 ==",
        ".. F0 B0 == F1 B1 == F2 B2 == .. ..",
    ],
    ("zb", 2, 2): [
        "F0 F1 F0 F1 .. I0 W0 I1 W1 I0 W0 I1 W1",
        ".. F0 F1 F0 I0 F1 I1 W0 I0 W1 I1 W0 W1",
    ],
    ("zbv", 2, 3): [
        "F0 F1 F2 F0 I0 W0 F1 I1 W1 I0 W0 F2 I2 W2 I1 W1 I2 W2 ..",
        ".. F0 F0 F1 F1 I0 W0 F2 I0 W0 F2 I1 W1 I1 I2 I2 W1 W2 W2",
    ],
}


@pytest.mark.parametrize("case", TIMELINES, ids=lambda case: case[0])
def test_small_timelines(case):
    assert drawing(planned(orders(*case), UNITS)) == TIMELINES[case]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("ranks", "m"), [(2, 2), (2, 7), (4, 4), (4, 32), (8, 9)])
def test_time_of_a_step(schedule, ranks, m):
    slots = planned(orders(schedule, ranks, m), UNITS)
    assert max(row[-1].end for row in slots) == (m + ranks - 1) * 3


def uneven(work):
    return UNITS[work.kind] + (7 * work.stage + 3 * work.micro_batch) % 5 / 10


@pytest.mark.parametrize(("schedule", "ranks"), CASES)
def test_passes_run_in_order_and_as_soon_as_what_they_need_is_there(schedule, ranks):
    last = stage_count(ranks, schedule) - 1
    for m in some_counts(schedule, ranks):
        made = orders(schedule, ranks, m)
        slots = planned(made, uneven)
        assert [[slot.work for slot in row] for row in slots] == made
        ends = {slot.work: slot.end for row in slots for slot in row}
        ends |= {w._replace(kind="input"): end for w, end in ends.items() if w.kind == "backward"}
        for row in slots:
            clock = 0
            for (kind, stage, i), start, end in row:
                after = [clock]
                if kind == "weight":
                    after.append(ends["input", stage, i])
                elif kind == "forward" and stage > 0:
                    after.append(ends["forward", stage - 1, i])
                elif kind != "forward":
                    after.append(ends["forward", stage, i])
                    if stage < last:
                        after.append(ends["input", stage + 1, i])
                assert start == max(after)
                assert end == start + uneven(Pass(kind, stage, i))
                clock = end


def test_zbv_never_waits_once_it_has_begun():
    for row in planned(orders("zbv", 4, 7), UNITS):
        assert all(a.end == b.start for a, b in pairwise(row))


def test_an_order_that_cannot_proceed():
    made = orders("1f1b", 2, 2)
    made[1].insert(0, made[1].pop())  # the last backward first
    with pytest.raises(
        AssertionError, match=r"ranks wait for one another at .*'backward', stage=1"
    ):
        planned(made, UNITS)


@pytest.mark.parametrize(
    ("schedule", "ranks", "m", "held"),
    [
        ("gpipe", 4, 8, [8, 8, 8, 8]),
        ("1f1b", 4, 8, [4, 3, 2, 1]),  # ranks that follow, and itself
        ("1f1b", 4, 4, [4, 3, 2, 1]),
        ("loopedbfs", 4, 8, [16, 16, 16, 16]),
        ("interleaved", 4, 8, [11, 9, 7, 5]),  # a round of 4, two for each that follows, and itself
        ("zb", 4, 8, [8, 8, 8, 8]),  # as the first rank of 1f1b, in half stages
        ("zbv", 4, 8, [8, 8, 8, 8]),
        ("dualpipev", 4, 8, [9, 9, 9, 9]),
    ],
)
def test_in_flight(schedule, ranks, m, held):
    assert in_flight(orders(schedule, ranks, m)) == held
