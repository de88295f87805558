"""What runs on an engine. Each function is called through ipyparallel: plain data in and out.

The life of a run on one rank is `open_store` (rank 0 only), `begin`, `advance` again and again, and
`release` before the next one begins; until then the engine keeps `model`, `optimizer` and `mesh` in
its namespace for whoever wants to look. A run's errors come back as data (`failure`), since what a
person needs is the rank, the step and a sentence.
"""

from __future__ import annotations

import gc
import os
import platform
import socket
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from parallab.cluster.boot import LOOPBACK

if TYPE_CHECKING:
    import torch

    from parallab.meter import Meter
    from parallab.rank.trainer import Trainer

GAUGE_SECONDS = 0.2


@dataclass
class Kept:
    """What one engine keeps of its run between calls: one run at a time, so one of each."""

    trainer: Trainer | None = None
    store: Any = None
    shown: dict[str, Any] = field(default_factory=dict)


_kept = Kept()


def hello() -> dict[str, Any]:
    """Who this engine is: host, process, versions, and the GPUs that it sees, by UUID."""
    import torch

    import parallab

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "parallab": parallab.__version__,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "gpus": [str(torch.cuda.get_device_properties(i).uuid) for i in range(gpus)],
        "device": torch.cuda.get_device_name(0) if gpus else "cpu",
        "gpu_bytes": torch.cuda.get_device_properties(0).total_memory if gpus else 0,
    }


def open_store(other_host: str | None) -> tuple[str, int]:
    """Opens the store that the ranks meet at, on rank 0.

    The socket is bound here and handed over, so nobody can take the port in between; torch's own
    choice would listen on every interface.

    Args:
        other_host: a host that must reach it; None where all ranks are on this one.

    Returns:
        Its address and port.
    """
    import torch.distributed as dist

    address = LOOPBACK if other_host is None else _address_towards(other_host)
    listening = socket.socket()
    listening.bind((address, 0))
    listening.listen(512)
    port = listening.getsockname()[1]
    _kept.store = dist.TCPStore(  # type: ignore[attr-defined]
        address, port, None, True, wait_for_workers=False, master_listen_fd=listening.detach()
    )
    return address, port


def begin(task: Mapping[str, Any]) -> dict[str, Any]:
    """Joins the process group and builds this rank's part of the model.

    Args:
        task: rank, world, address, port, backend, timeout (seconds a collective may wait), gpu
            (its number on this host, None for the CPU), and the run: model, plan, seed, text,
            trace_every, cap_bytes.

    Returns:
        {"place": Trainer.describe()}, or {"failure"}.
    """
    try:
        from parallab.rank.trainer import Trainer

        model, plan, device, options = _join(task)
        options |= {"trace_every": task["trace_every"], "cap_bytes": task["cap_bytes"]}
        trainer = Trainer(model, plan, device, **options)
        _kept.trainer = trainer
        _show(model=trainer.module, optimizer=trainer.optimizer, mesh=trainer.mesh)
        return {"place": {**trainer.describe(), "rank": task["rank"]}}
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  the client tells the person
        return {"failure": failure(error)}


def advance(count: int) -> dict[str, Any]:
    """Runs the next `count` steps.

    Returns:
        {"steps": [...]}, each as a Report stores it; with {"failure"} after those that finished.
    """
    trainer = _kept.trainer
    assert trainer is not None, "advance() without begin()"
    steps: list[dict[str, Any]] = []
    try:
        with _gauges(trainer.meter):
            # A plain loop keeps the steps before the one that fails.
            for _ in range(count):
                steps.append(asdict(trainer.step()))  # noqa: PERF401
        return {"steps": steps}
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  the client tells the person
        return {"steps": steps, "failure": failure(error)}


def verify(task: Mapping[str, Any]) -> dict[str, Any]:
    """Joins the process group, and holds the plan against one device.

    Returns:
        {"verified": parallab.rank.verify.verify()}, or {"failure"}.
    """
    try:
        from parallab.rank import verify as rank_verify

        model, plan, device, options = _join(task)
        found = rank_verify.verify(model, plan, device, steps=task["steps"], **options)
        return {"verified": found}
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  the client tells the person
        return {"failure": failure(error)}


def bench(rounds: int) -> dict[str, dict[str, float]]:
    """Times the steps of the last run, and this machine (`parallab.rank.bench`)."""
    from parallab.rank.bench import measure

    assert _kept.trainer is not None, "bench() without begin()"
    return measure(_kept.trainer, rounds)


def release() -> None:
    """Frees what the last run left: model, optimizer, mesh and process group. Safe to call twice.

    Threads and file descriptors of a process group live as long as a model or a mesh refers to it,
    hence the order.
    """
    import torch.distributed as dist

    _hide()
    trainer, _kept.trainer = _kept.trainer, None
    if trainer is not None:
        trainer.close()
    del trainer
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()
        gc.collect()
    _kept.store = None


def failure(error: BaseException) -> dict[str, Any]:
    """An exception as plain data; lets go of its frames, which hold the model.

    Returns:
        "type", "message", "traceback", "out_of_memory", "time" (Unix), and "spoiled": the process
        group did not form. torch counts failed groups on this rank alone, and with another count
        than its peers' the next group would hang, so such an engine is to be restarted.
    """
    import torch.distributed as dist

    text = "".join(traceback.format_exception(error))
    # A pipeline schedule wraps what a pass raises into an error of its own.
    full = next(filter(_out_of_memory, _causes(error)), None)
    told = full or error
    message = str(told) or type(told).__name__
    traceback.clear_frames(error.__traceback__)
    return {
        "type": type(told).__name__,
        "message": message[:2000],
        "traceback": text[-20_000:],
        "out_of_memory": full is not None,
        "time": time.time(),
        "spoiled": not dist.is_initialized(),
    }


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what caused it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__


def _out_of_memory(error: BaseException) -> bool:
    import torch

    return (
        isinstance(error, (torch.OutOfMemoryError, MemoryError))
        or "DefaultCPUAllocator: can't allocate memory" in str(error)
    )  # fmt: skip


def _join(task: Mapping[str, Any]) -> tuple[Any, Any, torch.device, dict[str, Any]]:
    """Forms the process group; the run's model, plan, device and common options."""
    import torch
    import torch.distributed as dist

    from parallab.models.spec import Model
    from parallab.plan import Plan

    device = torch.device("cpu") if task["gpu"] is None else torch.device("cuda", task["gpu"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=task["timeout"])
    rank, world, address, port = (task[key] for key in ("rank", "world", "address", "port"))
    if address == LOOPBACK:
        from parallab.cluster.places import loopback

        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())
    store = _kept.store
    if rank:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            address, port, None, False, timeout=timeout, wait_for_workers=False
        )
    dist.init_process_group(
        task["backend"],
        store=store,
        rank=rank,
        world_size=world,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )
    options = {"seed": task["seed"], "text": task["text"]}
    return Model.from_dict(task["model"]), Plan.from_dict(task["plan"]), device, options


@contextmanager
def _gauges(meter: Meter) -> Iterator[None]:
    """Publishes what the rank is doing, while a step takes long enough to be looked at."""
    over = threading.Event()

    def publish() -> None:
        from ipyparallel.engine.datapub import publish_data

        while not over.wait(GAUGE_SECONDS):
            publish_data(meter.gauge())

    thread = threading.Thread(target=publish, daemon=True, name="parallab-gauge")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _show(**named: Any) -> None:
    """Puts objects into the namespace that `%px` sees."""
    shell = _shell()
    if shell is not None:
        _kept.shown.update(named)
        shell.user_ns.update(named)


def _hide() -> None:
    """Takes them out again, unless the person has replaced them."""
    shell = _shell()
    if shell is not None:
        shell.last_execution_result = None  # IPython's own reference to what `%px` showed last
        for name, thing in _kept.shown.items():
            if shell.user_ns.get(name) is thing:
                del shell.user_ns[name]
    _kept.shown.clear()


def _shell() -> Any:
    """The engine's IPython; None where a function of this file is called elsewhere."""
    from IPython import get_ipython

    return get_ipython()  # type: ignore[no-untyped-call, unused-ignore]


def _address_towards(host: str) -> str:
    """This machine's address on the way to another host; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])
