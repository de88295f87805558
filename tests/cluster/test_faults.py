"""What goes wrong on real engines: told in words, recovered without help, nothing lost."""

from __future__ import annotations

import os
import signal
import time

import pytest

import parallab as pl
from parallab.cluster import LiveRun, calls, pool, run
from parallab.cluster.calls import explain
from parallab.cluster.run import check_texts
from tests.conftest import cluster_folder, processes_of, still_running

pytestmark = pytest.mark.engines

NANO = pl.Model("nano")
PLAN = pl.Plan("ddp", 4, batch=8, seq=32)

# Counts the steps of a run, and lets the third one go wrong.
THIRD_STEP = """
def step(self):
    self.count = getattr(self, "count", -1) + 1
    if self.count == 2:
        {}
    return plain_step(self)
Trainer.step = step
"""


def pids(cluster) -> list[int]:
    return [row["pid"] for row in cluster.health()]


def restarted(cluster, before: list[int]) -> list[int]:
    """Ranks whose process is another one than before."""
    return [r for r, (a, b) in enumerate(zip(before, pids(cluster), strict=True)) if a != b]


def after_some_steps(run: LiveRun, steps: int = 2) -> LiveRun:
    """A run in the middle of its steps."""
    while run.report.steps < steps:
        assert not run.finished, run.error
        time.sleep(0.01)
    return run


def check_well(cluster) -> None:
    """The next run works, without anything having been done about the last."""
    assert cluster.run(NANO, PLAN, steps=1).steps == 1


def test_a_rank_that_raises_is_named_and_its_peers_do_not_hang(cluster, sabotage):
    before = pids(cluster)
    sabotage(THIRD_STEP.format("raise ValueError('the cat sat on the key')"), [1])
    run = cluster.submit(NANO, PLAN, steps=6)
    with pytest.raises(pl.RankError) as caught:
        run.result(60)
    message = str(caught.value)
    assert message.startswith("Rank 1 failed in step")
    assert ": ValueError: the cat sat on the key." in message
    assert message.endswith("Ranks 0, 2 and 3 are being restarted.")
    assert caught.value.rank == 1
    assert "in step\n" in caught.value.details  # the engine's own traceback
    assert run.poll().message == message
    assert run.report.steps in (1, 2)  # two, unless the third was in the second's chunk
    check_well(cluster)
    assert restarted(cluster, before) == [0, 2, 3]


def test_when_every_rank_raises_none_is_restarted(cluster, sabotage):
    before = pids(cluster)
    sabotage(THIRD_STEP.format("raise ValueError('all together')"), [0, 1, 2, 3])
    run = cluster.submit(NANO, PLAN, steps=6)
    with pytest.raises(pl.RankError, match=r"^Rank \d failed in .*: all together\.$"):
        run.result(60)
    assert run.report.steps == 2
    assert restarted(cluster, before) == []


def test_out_of_memory_has_its_own_sentence(cluster, sabotage):
    sabotage(THIRD_STEP.format("import torch; torch.empty(2**50)"), [0, 1, 2, 3])
    with pytest.raises(pl.RankError, match=r"Rank \d ran out of memory in step.*More micro-batch"):
        cluster.run(NANO, PLAN, steps=6)


def test_a_rank_that_raises_while_building(cluster, sabotage):
    sabotage("def init(*a, **k): raise OSError('no room')\nTrainer.__init__ = init", [2])
    with pytest.raises(pl.RankError, match=r"Rank 2 failed while building the model: OSError: no"):
        cluster.run(NANO, PLAN, steps=2)


def test_a_text_that_is_too_short_is_refused(cluster, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("too short")
    with pytest.raises(pl.CorpusError, match="holds 9 bytes, and one sequence needs 33"):
        cluster.run(NANO, PLAN, steps=1, text=str(short))


def test_a_rank_that_hangs_is_found_when_the_others_give_up(cluster, sabotage, monkeypatch):
    before = pids(cluster)
    sabotage(THIRD_STEP.format("import time; time.sleep(600)"), [2])
    with monkeypatch.context() as patient:
        patient.setattr(cluster._pool, "timeout", 5.0)
        with pytest.raises(pl.RankError, match="Rank 2 did not come to a collective that others"):
            cluster.run(NANO, PLAN, steps=6)
    check_well(cluster)
    assert 2 in restarted(cluster, before)


def test_recover_ends_a_run_that_hangs(cluster, sabotage):
    sabotage(THIRD_STEP.format("import time; time.sleep(600)"), [3])
    # The second step is lost with the third where both are in one chunk.
    run = after_some_steps(cluster.submit(NANO, PLAN, steps=6), steps=1)
    assert cluster.recover() == [0, 1, 2, 3]
    with pytest.raises(
        pl.ClusterError, match=r"^recover\(\) ended the run after [12] of 6 steps\.$"
    ):
        run.result(1)
    assert run.report.steps in (1, 2)
    check_well(cluster)


def test_an_engine_that_is_killed(cluster):
    before = pids(cluster)
    run = after_some_steps(cluster.submit(NANO, PLAN, steps=50_000))
    os.kill(before[2], signal.SIGKILL)
    with pytest.raises(pl.RankError, match=r"Rank 2 was killed \(SIGKILL\) in step") as caught:
        run.result(30)
    assert caught.value.rank == 2
    assert run.report.steps >= 2
    check_well(cluster)
    assert 2 in restarted(cluster, before)


def test_an_engine_that_is_killed_between_runs(cluster):
    before = pids(cluster)
    os.kill(before[0], signal.SIGKILL)
    while cluster.health()[0]["state"] == "ready":
        time.sleep(0.01)
    assert cluster.health()[0]["state"] == "was killed (SIGKILL)"
    with pytest.raises(pl.ClusterError, match=r"Rank 0 was killed .* the next run restarts it"):
        _ = cluster.view
    check_well(cluster)
    assert restarted(cluster, before) == [0]


def test_an_engine_that_dies_when_it_is_first_asked(cluster, monkeypatch):
    before = pids(cluster)
    call = cluster._pool.call

    def dies(rank, function, *arguments):
        if rank == 1:
            monkeypatch.undo()
            os.kill(before[1], signal.SIGKILL)
            raise pl.ClusterError("Rank 1 cannot be reached: No such engine: 1.")
        return call(rank, function, *arguments)

    monkeypatch.setattr(cluster._pool, "call", dies)
    assert cluster.run(NANO, PLAN, steps=2).steps == 2
    assert restarted(cluster, before) == [1]


def test_an_engine_that_is_busy_with_something_else_is_left_to_it(cluster, monkeypatch, tmp_path):
    monkeypatch.setattr(pool, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(run, "ANSWER_SECONDS", 0.5)
    before, done = pids(cluster), tmp_path / "done"
    wait = "import pathlib, time\nwhile not pathlib.Path({!r}).exists(): time.sleep(0.01)"
    work = cluster.view.client[2].execute(wait.format(str(done)), block=False)
    with pytest.raises(pl.ClusterError, match=r"2 did not answer .* wait for it, or call"):
        cluster.run(NANO, PLAN, steps=1)
    monkeypatch.undo()
    done.touch()
    work.get(30)
    assert cluster.run(NANO, PLAN, steps=1).steps == 1
    assert restarted(cluster, before) == []


def test_an_engine_that_is_frozen(cluster):
    before = pids(cluster)
    run = after_some_steps(cluster.submit(NANO, PLAN, steps=50_000))
    os.kill(before[1], signal.SIGSTOP)
    with pytest.raises(pl.RankError, match=r"Rank 1 stands still \(SIGSTOP\) in step"):
        run.result(30)
    check_well(cluster)
    assert 1 in restarted(cluster, before)


@pytest.mark.parametrize("name", ["controller", "nursery"])
def test_when_one_that_all_need_is_killed_everything_ends_and_comes_back(cluster, name):
    processes = processes_of(cluster_folder(cluster))
    before = pids(cluster)
    run = after_some_steps(cluster.submit(NANO, PLAN, steps=50_000))
    getattr(cluster._pool._processes, f"_{name}").kill()
    with pytest.raises(pl.ClusterError, match=rf"{name}.* died in step.*next run restarts it"):
        run.result(30)
    assert run.report.steps >= 2
    assert still_running(processes, seconds=10) == []
    check_well(cluster)
    assert restarted(cluster, before) == [0, 1, 2, 3]


def test_verify_survives_a_rank_that_raises(cluster, sabotage):
    sabotage(THIRD_STEP.format("raise ValueError('third')"), [1])
    with pytest.raises(pl.RankError, match="Rank 1 failed while verifying: ValueError: third"):
        cluster.verify(NANO, PLAN)
    check_well(cluster)


# Which of several failures is the one to tell; no engines needed.


def told(message: str, at: float, kind: str = "RuntimeError") -> dict[str, object]:
    return {"type": kind, "message": message, "traceback": "T", "out_of_memory": False, "time": at}


def test_the_first_error_that_no_other_rank_caused_is_told():
    error = explain(
        {
            0: told("Connection closed by peer [127.0.0.1]", 1.0),
            1: told("late", 3.0),
            2: told("the\n  cause", 2.0),
        },
        stuck={3}, where="in step 5", owned=True,
    )  # fmt: skip
    assert str(error) == (
        "Rank 2 failed in step 5: RuntimeError: the cause. Rank 3 is being restarted."
    )


def test_a_death_explains_its_peers_errors():
    error = explain(
        {0: told("Connection reset by peer", 1.0), 3: {"lost": "was killed (SIGKILL)"}},
        stuck=set(), where="in step 5", owned=True,
    )  # fmt: skip
    assert str(error) == (
        "Rank 3 was killed (SIGKILL) in step 5; when nobody did that by hand, the system was out "
        "of memory. Rank 3 is being restarted."
    )
    assert error.rank == 3


def test_engines_that_are_not_ours_are_not_said_to_be_restarted():
    error = explain({0: told("no", 1.0)}, stuck={1, 2}, where="in step 0", owned=False)
    assert "Ranks 1 and 2 may be waiting for it still; this cluster was started elsewhere" in str(
        error
    )


def test_a_result_that_cannot_be_read_is_a_failure():
    class Call:
        def get(self) -> object:
            raise EOFError("half a message")

    failure = calls._result(Call())["failure"]
    assert (failure["type"], failure["message"]) == ("EOFError", "half a message")


def test_ranks_that_read_different_texts_are_refused():
    places = [{"rank": 0, "host": "a", "corpus": "11"}, {"rank": 1, "host": "b", "corpus": "22"}]
    with pytest.raises(pl.ClusterError, match=r"rank 0 on a: 11, rank 1 on b: 22"):
        check_texts(places)
    check_texts(places[:1])
