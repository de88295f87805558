"""Our own processes on this machine: controller, nursery and engines, and their directory."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import psutil

from parallab.cluster import boot, directory

KILL_SECONDS = 5.0
# Not `-m`: the package has imported boot by then, and Python warns of that.
BOOT = f"from {boot.__name__} import main; main()"
ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class Processes:
    """One controller, one nursery, and the engines that it forks (`boot.py`).

    Args:
        environment: variables for the nursery, and so for every engine.

    Attributes:
        directory: private, with logs and connection files.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.directory = directory.make()
        self._engines: dict[int, psutil.Process] = {}  # by rank
        self._exits: dict[int, int] = {}  # by process number: its status
        self._heard = threading.Condition()
        self._broken: Literal["controller", "nursery"] | None = None
        self._nursery = self._spawn("nursery", {**environment, boot.FORK_SAFE: "1"})
        self._controller = self._spawn("controller", {})
        threading.Thread(target=self._listen, daemon=True, name="parallab-nursery").start()

    def _spawn(self, role: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        log = os.open(self.directory / f"{role}.log", os.O_CREAT | os.O_WRONLY, 0o600)
        nursery = role == "nursery"
        try:
            return subprocess.Popen(
                [sys.executable, "-c", BOOT, role, str(os.getpid()), str(self.directory)],
                stdin=subprocess.PIPE if nursery else subprocess.DEVNULL,
                stdout=subprocess.PIPE if nursery else log,
                stderr=log,
                # Nobody's start-up files or history; and no signals from this terminal.
                env={**os.environ, "IPYTHONDIR": str(self.directory), **environment},
                start_new_session=True,
            )
        finally:
            os.close(log)

    def _listen(self) -> None:
        """Hears from the nursery who was born and who has ended."""
        assert self._nursery.stdout is not None
        for line in self._nursery.stdout:
            told = json.loads(line)
            with self._heard:
                if "rank" in told:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        self._engines[told["rank"]] = psutil.Process(told["pid"])
                else:
                    self._exits[told["pid"]] = told["status"]
                self._heard.notify_all()

    def broken(self) -> Literal["controller", "nursery"] | None:
        """Which of the two was seen to have ended first, and with it the whole."""
        if self._broken is None and self._nursery.poll() is not None:
            self._broken = "nursery"
        elif self._broken is None and self._controller.poll() is not None:
            self._broken = "controller"
        return self._broken

    def start_engine(self, rank: int, environment: Mapping[str, str]) -> None:
        """Orders an engine."""
        self._engines.pop(rank, None)
        order = json.dumps({"rank": rank, "environment": dict(environment)})
        assert self._nursery.stdin is not None
        try:
            self._nursery.stdin.write(order.encode() + b"\n")
            self._nursery.stdin.flush()
        except BrokenPipeError:
            pass  # it has died: `broken` says so

    def trouble(self, rank: int) -> str | None:
        """What happened to a rank's engine, in words; None while it is well or about to be born."""
        with self._heard:
            engine = self._engines.get(rank)
            if engine is None:
                return None
            state = psutil.STATUS_DEAD if engine.pid in self._exits else _state(engine)
            if state in ENDED:  # the nursery tells in a moment how
                self._heard.wait_for(lambda: engine.pid in self._exits, KILL_SECONDS)
                return _ended_with(self._exits.get(engine.pid))
        return "stands still (SIGSTOP)" if state == psutil.STATUS_STOPPED else None

    def kill(self, ranks: Collection[int]) -> None:
        """Ends engines, and waits until they have."""
        with self._heard:
            engines = [self._engines[rank] for rank in ranks if rank in self._engines]
            _kill(engines)
            if self._nursery.poll() is None:
                self._heard.wait_for(
                    lambda: all(engine.pid in self._exits for engine in engines), KILL_SECONDS
                )

    def last_words(self, name: str = "") -> str:
        """The end of a process's log; without a name, of the one that ended."""
        log = self.directory / f"{name or self.broken()}.log"
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return f"Its last words: {lines[-1][-300:]}" if lines else "It said nothing."

    def end(self) -> None:
        """Kills everything, waits for it, and removes the directory."""
        ours = (self._controller, self._nursery)
        engines = list(self._engines.values())
        pids = [*(process.pid for process in ours), *(engine.pid for engine in engines)]
        others = [child for pid in pids for child in _children(pid)]
        self.kill(self._engines)  # first, while the nursery is there to see them off
        _kill(others)
        for process in ours:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        psutil.wait_procs([*engines, *others], timeout=KILL_SECONDS)
        shutil.rmtree(self.directory, ignore_errors=True)


def _ended_with(status: int | None) -> str:
    """An exit status, for a sentence; None where nobody saw it."""
    if status is None:
        return "died"
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed ({name})"


def _state(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.NoSuchProcess:
        return str(psutil.STATUS_DEAD)


def _kill(processes: Iterable[psutil.Process]) -> None:
    """Ends processes, some of which may have ended already."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _children(pid: int) -> list[psutil.Process]:
    """Processes that a process started, and theirs."""
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []
