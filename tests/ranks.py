"""Runs a function on N real Gloo ranks of this machine, for tests.

>>> run_ranks(losses, 2, "zero3")       # losses(rank, "zero3") on each # doctest: +SKIP
[[5.5, 5.4], [5.5, 5.4]]
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

# Ranks are forked from a small server that has imported torch but never computed anything: as
# quick as a fork, without the threads and locks of the test process.
_context = multiprocessing.get_context("forkserver")
# torch._dynamo is what the first optimizer step would import, on every rank.
_context.set_forkserver_preload(
    [
        "parallab.rank.verify",
        "torch",
        "torch._dynamo",
        "torch.distributed.fsdp",
        "torch.distributed.tensor",
        "torch.nn.parallel",
    ]
)


class RankFailedError(Exception):
    """A rank raised; the message holds its number and traceback."""


def run_ranks(
    function: Callable[..., Any], world_size: int, *args: Any, deadline_seconds: float = 60.0
) -> list[Any]:
    """Calls `function(rank, *args)` on every rank of a fresh Gloo group over loopback.

    Args:
        function: importable by name (a test module's function); what it returns is pickled.
        world_size: ranks, one process with one thread each.
        deadline_seconds: for everything together.

    Returns:
        What each rank returned, by rank.

    Raises:
        RankFailedError: the first rank that raised or died; the others are killed.
        TimeoutError: the ranks that had not answered by the deadline.
    """
    deadline = time.monotonic() + deadline_seconds
    with tempfile.TemporaryDirectory() as folder:
        processes, pipes = [], []
        for rank in range(world_size):
            ours, theirs = _context.Pipe()
            process = _context.Process(
                target=_rank, args=(theirs, folder, function, rank, world_size, args), daemon=True
            )
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        try:
            return _collect(pipes, deadline)
        finally:
            for process, pipe in zip(processes, pipes, strict=True):
                process.kill()
                process.join()
                pipe.close()


def _collect(pipes: list[Connection], deadline: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        waiting = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in results}
        ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(f"Ranks {list(waiting.values())} gave no answer in time.")
        failures = []
        for pipe in pipes:
            if pipe in ready:
                failure, value = _answer(pipe)
                if failure is not None:
                    failures.append((failure, waiting[pipe], value))
                results[waiting[pipe]] = value
        if failures:
            _, rank, value = min(failures)
            raise RankFailedError(f"Rank {rank} failed.\n{value}")
    return [results[rank] for rank in range(len(pipes))]


def _answer(pipe: Connection) -> tuple[float | None, Any]:
    """When the rank failed, None where it did not, and its result or traceback."""
    try:
        failure, value = pipe.recv()
    except EOFError:
        return time.monotonic(), "It died without a word."
    return failure, value


def _rank(
    pipe: Connection,
    folder: str,
    function: Callable[..., Any],
    rank: int,
    world_size: int,
    args: tuple[Any, ...],
) -> None:
    import torch
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    # What the server has imported is for ever; without it a collection takes a tenth of the time.
    gc.freeze()
    try:
        store = dist.FileStore(str(Path(folder) / "store"), world_size)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=60)
        )
        pipe.send((None, function(rank, *args)))
    except BaseException:
        pipe.send((time.monotonic(), traceback.format_exc()))
    # A rank that leaves early would break the connections of the others: stay until all are done.
    with contextlib.suppress(EOFError):
        pipe.recv()
    os._exit(0)
