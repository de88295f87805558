"""What the processes do in which a learner's function runs: `main`.

    host    imports torch, and for each order forks a rank for each row of arguments
    rank    joins a Gloo group, calls the function under the communication meter, answers

An order is a line of JSON on standard input: name, source, arguments (a row for each rank), folder
(where they meet), seconds. Answers are lines on standard output: {} when torch is imported, then
for each order a list with {"value", "kind", "operations"} or {"error"} for each rank.
"""

from __future__ import annotations

import gc
import json
import math
import os
import select
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from parallab.meter.communication import CommunicationMeter
from parallab.meter.timeline import Timeline

# Ranks whose peer failed are still waiting for it: they get no more than this.
GRACE_SECONDS = 1.0
# A host that nobody has needed for so long gives its memory back.
IDLE_SECONDS = 300
MOST_NUMBERS = 100_000


def main() -> None:
    """Takes orders until there are no more, or none has come for a while."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a function prints is no answer
    torch.set_num_threads(1)
    gc.freeze()  # what is imported stays
    print("{}", file=answers, flush=True)
    waiting = b""
    while select.select([0], [], [], IDLE_SECONDS)[0]:
        received = os.read(0, 65536)
        if not received:
            break
        waiting += received
        if waiting.endswith(b"\n"):
            print(json.dumps(gathered(json.loads(waiting))), file=answers, flush=True)
            waiting = b""
    os._exit(0)  # without taking torch apart, which takes longer


def gathered(order: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Forks the ranks, waits for what each of them has to say, and ends them."""
    ranks = [_fork(order, rank) for rank in range(len(order["arguments"]))]
    try:
        found = _answers([pipe for _, pipe in ranks], order["seconds"])
    finally:
        for process, pipe in ranks:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            os.close(pipe)
    failed = any("error" in answer for answer in found.values())
    late: dict[str, Any] = {"error": f"it was not back after {order['seconds']:g} s, and was ended"}
    # A rank that waited for one that failed has not failed itself.
    missing: dict[str, Any] = {"value": None, "kind": "", "operations": {}} if failed else late
    return [found.get(pipe, missing) for _, pipe in ranks]


def _answers(pipes: list[int], seconds: float) -> dict[int, dict[str, Any]]:
    """By pipe, what came in time; after the first failure the others get a moment only."""
    deadline = time.monotonic() + seconds
    said = dict.fromkeys(pipes, b"")
    found: dict[int, dict[str, Any]] = {}
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        while len(found) < len(pipes):
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for key, _ in ready:
                received = os.read(key.fd, 65536)
                said[key.fd] += received
                if received and not received.endswith(b"\n"):
                    continue
                selector.unregister(key.fd)
                found[key.fd] = json.loads(said[key.fd] or b'{"error": "its process died"}')
                if "error" in found[key.fd]:
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
    return found


def _fork(order: Mapping[str, Any], rank: int) -> tuple[int, int]:
    """Starts a rank. Returns its process number and the pipe on which it answers."""
    ours, theirs = os.pipe()
    process = os.fork()
    if process:
        os.close(theirs)
        return process, ours
    # Nobody may be left to end it.
    signal.alarm(math.ceil(order["seconds"]) + 10)
    try:
        answer = json.dumps(_call(order, rank), default=repr)
    except BaseException as error:  # noqa: BLE001 whatever it is, the learner is told
        answer = json.dumps({"error": " ".join(f"{type(error).__name__}: {error}"[:400].split())})
    os.write(theirs, answer.encode() + b"\n")
    # Leaving now would break the connections of the others: the host ends all together.
    signal.pause()
    os._exit(0)


def _call(order: Mapping[str, Any], rank: int) -> dict[str, Any]:
    size = len(order["arguments"])
    any_dist: Any = dist  # FileStore is not among the names that it exports
    store = any_dist.FileStore(str(Path(order["folder"]) / "store"), size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=size,
        timeout=timedelta(seconds=order["seconds"]),
    )  # fmt: skip
    names: dict[str, Any] = {"torch": torch, "dist": dist, "math": math, "Tensor": torch.Tensor}
    exec(compile(order["source"], "<your function>", "exec"), names)  # noqa: S102 the learner's own
    function: Callable[..., Any] = names[order["name"]]
    arguments = [_tensor(argument) for argument in order["arguments"][rank]]
    meter = CommunicationMeter({}, Timeline(torch.device("cpu")), timed=False)
    with meter.recorded_step():
        value = function(*arguments)
    operations: dict[str, dict[str, int]] = {}
    for row in meter.rows():
        so_far = operations.setdefault(row.op, {"count": 0, "payload_bytes": 0})
        so_far["count"] += row.count
        so_far["payload_bytes"] += row.payload_bytes
    return {"value": _plain(value), "kind": _kind(value), "operations": operations}


def _tensor(argument: Any) -> Any:
    return torch.tensor(argument, dtype=torch.float64) if isinstance(argument, list) else argument


def _kind(value: Any) -> str:
    return "tensor" if isinstance(value, torch.Tensor) else type(value).__name__


def _plain(value: Any) -> Any:
    """A returned value as JSON: tensors as lists, what is no number or text as a text."""
    if isinstance(value, torch.Tensor):
        if value.numel() > MOST_NUMBERS:
            raise ValueError(f"it returned {value.numel():,} numbers, more than anybody looks at")
        return value.detach().tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(part) for part in value]
    return value if isinstance(value, int | float | str | None) else repr(value)[:200]
