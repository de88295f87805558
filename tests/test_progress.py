"""Progress and Replay: what a panel or the terminal sees of a run."""

import pytest

import parallab as pl
from parallab.progress import FINISHED, Progress, step_ends
from parallab.report import Memory, Rank, Step


def replayed(steps, **options):
    ranks = [
        Rank(r, {"dp": r, "pp": 0, "tp": 0}, "cpu", "here",
             [Step(i, 5.0 - i, 0.1, False, Memory(100)) for i in range(steps)])
        for r in range(2)
    ]  # fmt: skip
    report = pl.Report("measured", pl.Model("nano"), pl.Plan("ddp", 2), {}, ranks)
    return report, pl.Replay(report, **options)


@pytest.mark.parametrize(
    ("state", "finished"),
    [("starting", False), ("running", False), ("stopping", False), ("done", True),
     ("stopped", True), ("failed", True)],
)  # fmt: skip
def test_finished(state, finished):
    assert Progress(state).finished is finished
    assert (state in FINISHED) is finished


def test_replay_brings_every_step_once_and_in_order():
    report, run = replayed(3)
    polls = [run.poll() for _ in range(3)]
    assert [p.state for p in polls] == ["running", "running", "done"]
    assert [step[0].step for p in polls for step in p.steps] == [0, 1, 2]
    assert all(len(step) == 2 for p in polls for step in p.steps)
    assert polls[1].message == "Step 2 of 3 (replay)."
    assert polls[2].message == "Replayed 3 measured steps."
    assert run.result() is report
    assert (run.model, run.plan, run.total_steps) == (report.model, report.plan, 3)


def test_replay_several_steps_a_poll():
    _, run = replayed(5, steps_per_poll=2)
    assert [len(run.poll().steps) for _ in range(3)] == [2, 2, 1]


def test_a_finished_replay_brings_nothing_more():
    _, run = replayed(1)
    assert run.poll().state == "done"
    again = run.poll()
    assert (again.state, again.steps) == ("done", [])


def test_replay_of_nothing_is_done_at_once():
    _, run = replayed(0)
    assert run.poll().finished


def test_stop():
    _, run = replayed(3)
    run.poll()
    run.stop()
    progress = run.poll()
    assert (progress.state, progress.message) == ("stopped", "Stopped after 1 step.")
    assert progress.steps == []


def test_a_stopped_replays_result_holds_what_was_played():
    report, run = replayed(3)
    run.poll()
    run.stop()
    result = run.result()
    assert result.steps == 1
    assert report.steps == 3


@pytest.mark.parametrize("steps_per_poll", [0, -1])
def test_a_replay_must_move_on(steps_per_poll):
    with pytest.raises(ValueError, match="steps_per_poll"):
        replayed(3, steps_per_poll=steps_per_poll)


def test_replay_by_the_clock():
    now = [100.0]
    _, run = replayed(3, speed=2, clock=lambda: now[0])
    seen = []
    for later in (0.0, 0.049, 0.002, 0.05, 0.05):
        now[0] += later
        seen.append(len(run.poll().steps))
    assert seen == [0, 0, 1, 1, 1]
    assert run.poll().state == "done"
    with pytest.raises(ValueError, match="speed=0"):
        replayed(3, speed=0)


def test_a_replays_pauses_are_the_runs():
    report, _ = replayed(2)
    for rank in report.ranks:
        for step, begin in zip(rank.steps, (50.0, 53.0), strict=True):
            step.begin = begin + 0.01 * rank.rank
    assert step_ends(report) == pytest.approx([0.1, 3.1])
    assert step_ends(replayed(0)[0]) == []


def test_what_took_no_time_is_played_step_by_step():
    report, _ = replayed(2)
    for rank in report.ranks:
        for step in rank.steps:
            step.seconds = None
    run = pl.Replay(report, speed=1)
    assert [len(run.poll().steps) for _ in range(2)] == [1, 1]
