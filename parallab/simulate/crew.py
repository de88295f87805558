"""The processes that simulate ranks.

A simulation replaces parts of torch and forms a world of its own, which must neither meet a real
one nor anybody's tensors, and it keeps a core busy. So it has processes of its own: a notebook's
kernel stays light and free, several ranks are simulated at once, and whatever goes wrong or is
interrupted ends with the process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from parallab import child
from parallab.errors import RankError
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.predict.parts import blocks_of_stage, held_stages

BOOT = "from parallab.simulate.worker import main; main()"
# Each holds torch, a third of a GiB.
MOST_WORKERS = 4
TICK_SECONDS = 0.25
# A worker takes so long to start, and two steps of a block and micro-batch take so long.
START_SECONDS = 4.0
BLOCK_SECONDS = 0.1


def simulate_ranks(
    model: Model, plan: Plan, ranks: list[int], progress: Callable[[int, int, str], None]
) -> list[dict[str, Any]]:
    """Each rank's answer (`parallab.simulate.worker`).

    Raises:
        RankError: a rank failed; the others were ended.
    """
    answers: dict[int, dict[str, Any]] = {}
    waiting = deque(ranks)
    words = "starting"
    with _crew(_size(model, plan, ranks)) as workers, selectors.DefaultSelector() as selector:
        busy: dict[Worker, int] = {}

        def next_rank(worker: Worker) -> None:
            if waiting:
                busy[worker] = rank = waiting.popleft()
                worker.order(model=model.to_dict(), plan=plan.to_dict(), rank=rank)
            else:
                selector.unregister(worker)  # it may grow tired of waiting, and leave

        for worker in workers:
            selector.register(worker, selectors.EVENT_READ)
            next_rank(worker)
        while busy:
            progress(len(answers), len(ranks), words)
            for key, _ in selector.select(TICK_SECONDS):
                worker = cast(Worker, key.fileobj)
                for answer in worker.answers(busy[worker]):
                    if "words" in answer:
                        words = answer["words"]
                    else:
                        answers[busy.pop(worker)] = answer
                        next_rank(worker)
    progress(len(ranks), len(ranks), "done")
    return [answers[rank] for rank in ranks]


def _size(model: Model, plan: Plan, ranks: list[int]) -> int:
    """How many workers pay: another one when the work is long enough for it to start."""
    blocks = sum(
        blocks_of_stage(model, plan, stage)
        for rank in ranks
        for stage in held_stages(plan, plan.coordinates(rank)["pp"])
    )
    seconds = min(blocks, 14 * len(ranks)) * plan.micro_batches * BLOCK_SECONDS
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(len(ranks), cores or 1, MOST_WORKERS, 1 + int(seconds / START_SECONDS))


class Worker:
    """One process, which simulates one rank after the other."""

    def __init__(self) -> None:
        self._unfinished = b""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 it lives as long as the process
        self._process = child.start(BOOT, str(os.getpid()), log=self._log)

    def fileno(self) -> int:
        """Where its answers arrive."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    @property
    def alive(self) -> bool:
        """Whether it can take an order."""
        return self._process.poll() is None

    def order(self, **facts: Any) -> None:
        """Gives it work."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its answer will say that it has ended
            self._process.stdin.write(json.dumps(facts).encode() + b"\n")
            self._process.stdin.flush()

    def answers(self, rank: int) -> list[dict[str, Any]]:
        """What it has said by now about this rank; waits where it has said nothing.

        Raises:
            RankError: it failed.
        """
        said = os.read(self.fileno(), 2**20)
        if not said:
            raise RankError(
                f"The process that simulated rank {rank} {_how_ended(self._process.wait())}. "
                f"{self._last_words()}",
                rank,
            )
        *lines, self._unfinished = (self._unfinished + said).split(b"\n")
        answers = [json.loads(line) for line in lines]
        for answer in answers:
            if "error" in answer:
                reason = answer["error"].strip().splitlines()[-1]
                raise RankError(f"Simulating rank {rank} failed: {reason}", rank, answer["error"])
        return answers

    def end(self) -> None:
        """Ends it at once."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"Its last words: {lines[-1][-300:]}" if lines else "It said nothing."


def _how_ended(status: int) -> str:
    if status == -signal.SIGKILL:
        return "was killed from outside, as happens where memory runs out"
    return f"ended with status {status}"


_resting: list[Worker] = []
_lock = threading.Lock()


@contextmanager
def _crew(size: int) -> Iterator[list[Worker]]:
    """Workers, rested ones first; they rest again when all went well, and are ended otherwise."""
    workers: list[Worker] = []
    with _lock:
        while _resting and len(workers) < size:
            worker = _resting.pop()
            if worker.alive:
                workers.append(worker)
            else:
                worker.end()
    try:
        while len(workers) < size:
            workers.append(Worker())
        yield workers
    except BaseException:
        for worker in workers:
            worker.end()
        raise
    with _lock:
        _resting.extend(workers)


@atexit.register
def dismiss() -> None:
    """Ends the workers that rest."""
    with _lock:
        while _resting:
            _resting.pop().end()
