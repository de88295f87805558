"""Our own processes on this machine: controller, nursery and engines, and their directory."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Mapping
from pathlib import Path

import psutil

from parallab.cluster import boot

KILL_SECONDS = 5.0


class Processes:
    """One controller, one nursery, and the engines that it forks (`boot.py`).

    Args:
        environment: variables for the nursery, and so for every engine.

    Attributes:
        directory: private, with logs and connection files.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        # A short path: some systems allow little more than 100 characters for a socket's.
        self.directory = Path(tempfile.mkdtemp(prefix="parallab-"))
        self._pids: dict[int, int] = {}  # by rank
        self._exits: dict[int, int] = {}  # by process: its status
        self._heard = threading.Condition()
        self._nursery = self._spawn("nursery", {**environment, boot.FORK_SAFE: "1"})
        self._controller = self._spawn("controller", {})
        threading.Thread(target=self._listen, daemon=True, name="parallab-nursery").start()

    def _spawn(self, role: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        log = os.open(self.directory / f"{role}.log", os.O_CREAT | os.O_WRONLY, 0o600)
        nursery = role == "nursery"
        try:
            return subprocess.Popen(
                [sys.executable, "-m", boot.__name__, role, str(os.getpid()), str(self.directory)],
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
                    self._pids[told["rank"]] = told["pid"]
                else:
                    self._exits[told["pid"]] = told["status"]
                self._heard.notify_all()

    def broken(self) -> bool:
        """Whether the controller or the nursery has ended, and with it the whole."""
        return self._controller.poll() is not None or self._nursery.poll() is not None

    def start_engine(self, rank: int, environment: Mapping[str, str]) -> None:
        """Orders an engine."""
        self._pids.pop(rank, None)
        order = json.dumps({"rank": rank, "environment": dict(environment)})
        assert self._nursery.stdin is not None
        try:
            self._nursery.stdin.write(order.encode() + b"\n")
            self._nursery.stdin.flush()
        except BrokenPipeError:
            pass  # it has died: `broken` says so

    def status(self, rank: int) -> int | None:
        """The exit status of a rank's engine; None while it lives or is about to be born."""
        with self._heard:
            return self._exits.get(self._pids.get(rank, 0))

    def stands_still(self, rank: int) -> bool:
        """Whether somebody has stopped a rank's process."""
        try:
            return psutil.Process(self._pids[rank]).status() == psutil.STATUS_STOPPED
        except (KeyError, psutil.NoSuchProcess):
            return False

    def kill(self, ranks: Collection[int]) -> None:
        """Ends engines, and waits until they have."""
        pids = [self._pids[rank] for rank in ranks if rank in self._pids]
        with self._heard:
            for pid in pids:
                if pid not in self._exits:
                    os.kill(pid, signal.SIGKILL)
            self._heard.wait_for(lambda: all(pid in self._exits for pid in pids), KILL_SECONDS)

    def last_words(self, name: str = "") -> str:
        """The end of a process's log; without a name, of the one that ended."""
        if not name:
            name = "nursery" if self._nursery.poll() is not None else "controller"
        log = self.directory / f"{name}.log"
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return f"Its last words: {lines[-1][-300:]}" if lines else "It said nothing."

    def end(self) -> None:
        """Kills everything, waits for it, and removes the directory."""
        ours = (self._controller, self._nursery)
        others = [child for process in ours for child in children(process.pid)]
        if self._nursery.poll() is None:
            self.kill(self._pids)  # first, so that the nursery still sees them off
        for process in others:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for own in ours:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(own.pid, signal.SIGKILL)
            own.wait()
        psutil.wait_procs(others, timeout=KILL_SECONDS)
        shutil.rmtree(self.directory, ignore_errors=True)


def children(pid: int) -> list[psutil.Process]:
    """Processes that a process started, and theirs."""
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []
