"""Every collective and point-to-point operation of a step, counted where all of them pass.

Whoever starts an operation (DDP's reducer, `fully_shard`, a functional collective, a pipeline, a
compiled graph, another thread), it goes through the dispatcher as an op of `c10d`. A Python kernel
on the dispatcher's BackendSelect key is on that way, on every thread and device, before the kernel
that does the work:

    caller -> c10d::allreduce_ -> [BackendSelect: count] -> [CPU | CUDA: Gloo | NCCL]
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from parallab.meter.timeline import Phase, Timeline, now
from parallab.predict.communication import receivers, wire_bytes
from parallab.report import Communication, Span

# A callback runs within microseconds of the end of its operation, once it gets the GIL.
_SETTLE_SECONDS = 0.1


@dataclass(frozen=True)
class _Operation:
    """How to read a c10d op.

    Attributes:
        name: the operation as a Report names it.
        payload: which argument holds the payload, None where nothing is moved.
        shard: whether that argument is one rank's part, so that the payload is n of it.
    """

    name: str
    payload: int | None
    shard: bool = False


_OPERATIONS = {
    "allreduce_": _Operation("all_reduce", 0),
    "allreduce_coalesced_": _Operation("all_reduce", 0),
    "allgather_": _Operation("all_gather", 0),
    "_allgather_base_": _Operation("all_gather", 0),
    "allgather_coalesced_": _Operation("all_gather", 0),
    "allgather_into_tensor_coalesced_": _Operation("all_gather", 0),
    "reduce_scatter_": _Operation("reduce_scatter", 1),
    "_reduce_scatter_base_": _Operation("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": _Operation("reduce_scatter", 1),
    "broadcast_": _Operation("broadcast", 0),
    "reduce_": _Operation("reduce", 0),
    "gather_": _Operation("gather", 1, shard=True),
    "gather_into_tensor_": _Operation("gather", 1, shard=True),  # torch 2.14
    "scatter_": _Operation("scatter", 0, shard=True),
    "alltoall_": _Operation("all_to_all", 1),
    "alltoall_base_": _Operation("all_to_all", 1),
    "send": _Operation("send", 0),
    "recv_": _Operation("recv", 0),
    "recv_any_source_": _Operation("recv", 0),
    "barrier": _Operation("barrier", None),
    "monitored_barrier_": _Operation("barrier", None),
}


@dataclass
class _Call:
    """One operation.

    Attributes:
        start, end: seconds of the timeline's clock; end is None until it is known.
        followed: whether the backend will say when it has ended.
        traffic: receiving rank -> bytes.
    """

    op: str
    axis: str
    phase: Phase
    payload_bytes: int
    wire_bytes: int
    start: float
    end: float | None = None
    followed: bool = False
    traffic: dict[int, int] = field(default_factory=dict)


class CommunicationMeter:
    """Counts the operations of a step on one rank.

    Times are of CPU operations only. Where the backend tells when an operation was complete, its
    time is from its issue to then, waiting for slower ranks included. Gloo does not tell for
    reduce-scatter, send and receive: theirs is the time that the rank stood waiting for them.

    Args:
        axes: process-group name -> mesh axis; a group that is not named is "world".
        timeline: the clock, and the phase that an operation belongs to.
        timed: whether to find out times; NCCL says "complete" when it has only been queued.
    """

    def __init__(self, axes: Mapping[str, str], timeline: Timeline, *, timed: bool) -> None:
        self._axes = dict(axes)
        self._members: dict[str, list[int]] = {}
        self._timeline = timeline
        self._timed = timed
        self._calls: list[_Call] = []
        self._recording = False
        # Works that are timed by their wait(), held so that each stays the same object until then.
        self._waits: dict[int, tuple[dist.Work, _Call]] = {}

    @contextmanager
    def recorded_step(self) -> Iterator[None]:
        """Counts what happens inside; what was counted before is forgotten."""
        _kernels.install(self)
        self._calls = []
        self._recording = True
        try:
            yield
            self._settle()
        finally:
            self._recording = False
            self._waits.clear()

    def _settle(self) -> None:
        """Gives the callbacks of operations that are over a moment to say so."""
        deadline = now() + _SETTLE_SECONDS
        while any(c.end is None and c.followed for c in self._calls) and now() < deadline:
            time.sleep(0.0002)

    def rows(self) -> list[Communication]:
        """The step's operations added up by operation, axis and phase, in order of appearance.

        `seconds` is None where the time of one of them is not known.
        """
        rows: dict[tuple[str, str, str], Communication] = {}
        for call in self._calls:
            key = (call.op, call.axis, call.phase.name)
            row = rows.setdefault(key, Communication(*key, 0, 0, 0, 0.0))
            row.count += 1
            row.payload_bytes += call.payload_bytes
            row.wire_bytes += call.wire_bytes
            if call.end is None or row.seconds is None:
                row.seconds = None
            else:
                row.seconds += call.end - call.start
        return list(rows.values())

    def spans(self) -> list[Span]:
        """The operations whose times are known."""
        begin = self._timeline.begin_seconds
        return [
            Span(
                "communication", c.phase.stage, c.phase.micro_batch, c.start - begin, c.end - begin
            )
            for c in self._calls
            if c.end is not None
        ]

    def traffic(self) -> dict[int, int]:
        """Bytes that this rank sent in the step to each other, on ideal rings."""
        totals: dict[int, int] = defaultdict(int)
        for call in self._calls:
            for rank, size in call.traffic.items():
                totals[rank] += size
        return dict(sorted(totals.items()))

    def close(self) -> None:
        """Takes the kernels away; nothing where another meter has taken over."""
        _kernels.uninstall(self)

    # Called by the kernels and by wait(), on any thread.

    def begin(
        self, operation: _Operation, args: tuple[Any, ...], group: dist.ProcessGroup, root: int
    ) -> _Call | None:
        """Notes an operation that is about to start; None outside a step.

        Args:
            root: the group's rank that it starts from or leads to; of a send, the receiver.
        """
        if not self._recording:
            return None
        n, me = group.size(), group.rank()
        payload = 0 if operation.payload is None else _bytes(args[operation.payload])
        if operation.shard:
            payload *= n
        call = _Call(
            op=operation.name,
            axis=self._axes.get(group.group_name, "world"),
            phase=self._timeline.phase,
            payload_bytes=payload,
            wire_bytes=wire_bytes(operation.name, payload, n, (me - root) % n),
            start=now(),
        )
        ranks = self._ranks_of(group)
        sent = receivers(operation.name, call.wire_bytes, n, (me - root) % n)
        call.traffic = {ranks[(me + offset) % n]: size for offset, size in sent.items()}
        self._calls.append(call)
        return call

    def _ranks_of(self, group: dist.ProcessGroup) -> list[int]:
        """The group's members by their numbers in the world."""
        name = group.group_name
        if name not in self._members:
            c10d: Any = dist.distributed_c10d
            self._members[name] = dist.get_process_group_ranks(c10d._resolve_process_group(name))
        return self._members[name]

    def follow(self, call: _Call, result: Any) -> None:
        """Finds out when an operation ends. What fails here leaves the end unknown, no more."""
        if not self._timed:
            return
        with contextlib.suppress(Exception):
            work = dist.Work.unbox(result[-1] if isinstance(result, tuple) else result)
            try:
                work.get_future().add_done_callback(lambda _: _end(call))
                call.followed = True
            except RuntimeError:
                if _started_in_python():
                    self._waits[id(work)] = (work, call)

    def waited(self, work: dist.Work) -> _Call | None:
        """The operation that a work stands for, where its wait() is its time."""
        return self._waits.pop(id(work), (None, None))[1]


def _end(call: _Call) -> None:
    call.end = now()


def _bytes(tensors: Any) -> int:
    if isinstance(tensors, Tensor):
        return tensors.nbytes
    return sum(_bytes(part) for part in tensors)


def _started_in_python() -> bool:
    """Whether torch.distributed's Python started the operation, whose caller waits in Python.

    A functional collective waits in C++, unseen, and its work, held for nothing, would keep its
    tensors in memory.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == dist.distributed_c10d.__name__


class _Kernels:
    """The kernels, which belong to the process; the meter that they report to changes.

    Attributes:
        meter: the one whose step they count; the last that was installed.
    """

    def __init__(self) -> None:
        self.meter: CommunicationMeter | None = None
        self._lock = threading.Lock()
        self._library: torch.library.Library | None = None

    def install(self, meter: CommunicationMeter) -> None:
        """Makes the kernels report to this meter, and puts them in place where they are not."""
        with self._lock:
            self.meter = meter
            if self._library is not None:
                return
            self._library = torch.library.Library("c10d", "IMPL")
            for name, operation in _OPERATIONS.items():
                if hasattr(torch.ops.c10d, name):
                    kernel = _kernel(getattr(torch.ops.c10d, name).default, operation)
                    self._library.impl(name, kernel, "BackendSelect", with_keyset=True)
            dist.Work.wait = _timed_wait  # type: ignore[method-assign, assignment]

    def uninstall(self, meter: CommunicationMeter) -> None:
        """Takes the kernels away, unless another meter has taken over."""
        with self._lock:
            if self.meter is not meter:
                return
            self.meter = None
            if self._library is not None:
                self._library._destroy()
                self._library = None
                dist.Work.wait = _wait  # type: ignore[method-assign]


_kernels = _Kernels()
_wait = dist.Work.wait


def _kernel(op: Any, operation: _Operation) -> Callable[..., Any]:
    arguments = [argument.name for argument in op._schema.arguments]
    group_at = arguments.index("process_group")
    root_at = next((i for i, name in enumerate(arguments) if name in ("root_rank", "dst")), None)
    here = torch._C.DispatchKey.BackendSelect

    def kernel(keyset: Any, *args: Any) -> Any:
        call, meter = None, _kernels.meter
        if meter is not None:
            group = dist.ProcessGroup.unbox(args[group_at])
            call = meter.begin(operation, args, group, 0 if root_at is None else args[root_at])
        result = op.redispatch(keyset.remove(here), *args)
        if meter is not None and call is not None:
            meter.follow(call, result)
        return result

    return kernel


def _timed_wait(work: dist.Work, *args: Any, **kwargs: Any) -> Any:
    """`Work.wait` for operations whose backend tells no end: the time is that spent in here."""
    meter = _kernels.meter
    call = None if meter is None else meter.waited(work)
    if call is None:
        return _wait(work, *args, **kwargs)
    call.start = now()
    try:
        return _wait(work, *args, **kwargs)
    finally:
        call.end = now()
