"""How every process of a cluster starts: `main`, with ROLE CLIENT DIRECTORY as its arguments.

    client ── controller          ipyparallel's, in the middle of all messages
           └─ nursery ── engine 0, engine 1, …

The nursery imports torch once and forks each engine, which takes a second instead of four, also
when one must be restarted. Processes end when their parent ends, however it ends; what they write
is readable by their owner only.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
GUARD_SECONDS = 0.5
# Lets torch say whether there is a GPU without starting CUDA.
FORK_SAFE = "PYTORCH_NVML_BASED_CUDA_CHECK"
# What an engine needs until its first step. None starts CUDA, which a fork would not survive.
ENGINE_MODULES = ("torch", "torch.distributed", "parallab.rank.trainer", "ipyparallel.engine.app")


def main() -> None:
    """Becomes the controller or the nursery; returns only when that ends."""
    role, client, directory = sys.argv[1:]
    os.umask(0o077)
    become = {"controller": become_controller, "nursery": become_nursery}[role]
    become(int(client), Path(directory))


def become_controller(client: int, directory: Path) -> None:
    """Runs ipyparallel's controller: loopback only, encrypted, its schedulers as threads.

    Engines register on a heartbeat, and count as lost after 20 without an answer: 10 s. Without
    NoDB the hub would keep every result in memory, and Curve takes the place of signed messages.
    """
    from ipyparallel.controller.app import IPController

    me = os.getpid()
    os.register_at_fork(after_in_child=lambda: watch_parent(me, lambda: os._exit(1)))

    class Controller(IPController):  # type: ignore[misc]
        def init_signal(self) -> None:
            super().init_signal()
            # Its heartbeat process is forked by now, so a thread does no harm.
            watch_parent(client, lambda: os.killpg(0, signal.SIGKILL))

    Controller.launch_instance(
        [
            f"--profile-dir={directory}",
            f"--ip={LOOPBACK}",
            f"--IPController.location={LOOPBACK}",
            "--IPController.enable_curve=True",
            "--IPController.use_threads=True",
            "--IPController.db_class=NoDB",
            "--HeartMonitor.period=500",
            "--HeartMonitor.max_heartmonitor_misses=20",
            "--log-level=WARN",
        ]
    )


def become_nursery(client: int, directory: Path) -> None:
    """Imports what engines need, then forks one for each line on standard input.

    A line is {"rank", "environment"}; the answers on standard output are {"rank", "pid"} and, when
    an engine has ended, {"pid", "status"} with its exit status, or minus the signal.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted import leaves half a torch
    for name in ENGINE_MODULES:
        importlib.import_module(name)
    gc.freeze()  # engines share these objects, and their collections need not look at them
    me = os.getpid()
    engines: set[int] = set()
    waiting = b""
    while os.getppid() == client:
        if select.select([0], [], [], 0.1)[0]:
            received = os.read(0, 65536)
            if not received:
                break
            *lines, waiting = (waiting + received).split(b"\n")
            for order in map(json.loads, lines):
                pid = os.fork()
                if not pid:
                    try:
                        become_engine(me, directory, order["rank"], order["environment"])
                    finally:
                        os._exit(0)
                engines.add(pid)
                _answer(rank=order["rank"], pid=pid)
        while ended := _ended_child():
            engines.discard(ended[0])
            _answer(pid=ended[0], status=os.waitstatus_to_exitcode(ended[1]))
    # The client died, so nobody else can clear up.
    for pid in engines:
        os.kill(pid, signal.SIGKILL)
    time.sleep(2 * GUARD_SECONDS)  # until the controller writes no more
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)


def become_engine(nursery: int, directory: Path, rank: int, environment: Mapping[str, str]) -> None:
    """Runs ipyparallel's engine number `rank` in a process that was just forked."""
    os.setsid()  # a signal for the client's terminal is not for engines
    log = os.open(directory / f"engine-{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    silence = os.open(os.devnull, os.O_RDONLY)
    for ours, standard in ((silence, 0), (log, 1), (log, 2)):
        os.dup2(ours, standard)
    os.environ.update(environment)
    os.environ.pop(FORK_SAFE, None)
    watch_parent(nursery, lambda: os._exit(1))
    from ipyparallel.engine.app import IPEngine

    while not (found := connection(directory, "engine")):
        time.sleep(0.02)
    os.environ["IPP_CONNECTION_INFO"] = json.dumps(found)
    IPEngine.launch_instance(
        [
            f"--profile-dir={directory}",
            f"--IPEngine.id={rank}",
            # A model that `%px model` has shown must not live on in Out.
            "--InteractiveShell.cache_size=0",
            "--log-level=WARN",
        ]
    )


def _answer(**facts: int) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


def _ended_child() -> tuple[int, int] | None:
    """Process and wait status of an engine that has ended, None where there is none."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def connection(directory: Path, kind: str) -> dict[str, Any]:
    """Where the controller listens for "client" or "engine"; empty until it has said so."""
    path = directory / "security" / f"ipcontroller-{kind}.json"
    try:
        return dict(json.loads(path.read_text()))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def watch_parent(parent: int, end: Callable[[], None]) -> None:
    """Calls `end` from a thread, at most GUARD_SECONDS after this process lost its parent."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(GUARD_SECONDS)
        end()

    threading.Thread(target=watch, daemon=True, name="parallab-guard").start()
