"""One fake rank: the trainer itself, on fake tensors and a process group that moves nothing.

What a step costs in bytes follows from the shapes of its tensors and from when they live and die.
For that no number must be computed and nobody must answer, so that any rank of any world runs
alone, in one process without memory.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.distributed.tensor import debug
from torch.testing._internal.distributed.fake_pg import FakeStore

from parallab.meter import Meter
from parallab.meter.categories import watched_resize
from parallab.meter.fake import FakeMemory
from parallab.models.spec import Model
from parallab.parallel import build, clip, data
from parallab.plan import Plan
from parallab.rank import decoder
from parallab.rank.trainer import Trainer
from parallab.report import Step
from parallab.simulate.layers import Trace
from parallab.simulate.replicate import FakeReplicate
from parallab.stages import ZERO_BUBBLE


def run(model: Model, plan: Plan, rank: int, blocks: Mapping[int, int] | None = None) -> Trace:
    """Trains a fake rank until its steps repeat, and returns the last.

    Args:
        rank: its number among `plan.devices`.
        blocks: how many blocks each of its stages holds; as many as the model has unless given.
    """
    assert not dist.is_initialized(), "a fake world cannot be formed within a real one"
    # The second step has optimizer state; zero-bubble schedules also carry something over.
    steps = 3 if plan.pp > 1 and plan.schedule in ZERO_BUBBLE else 2
    with ExitStack() as stack:
        stack.enter_context(_fake_group(rank, plan.devices))
        stack.enter_context(_replaced(data, "DistributedDataParallel", FakeReplicate))
        stack.enter_context(_held_while_under_way())
        stack.enter_context(_replaced(_fsdp_param, "_chunk_with_empty", _Chunks))
        stack.enter_context(_replaced(decoder, "_normal", _no_values))
        if blocks is not None:
            stage_blocks = functools.partial(_stage_blocks, blocks)
            stack.enter_context(_replaced(build, "stage_blocks", stage_blocks))
        memory = stack.enter_context(FakeMemory())
        stack.enter_context(watched_resize(memory))
        trainer = Trainer(model, plan, torch.device("cpu"), trace_every=1)
        stack.enter_context(closing(trainer))
        stack.enter_context(_replaced(clip, "scale", _in_its_own_phase(trainer.meter, clip.scale)))
        step = [trainer.step() for _ in range(steps)][-1]
        return Trace(_timeless(step), trainer.meter.moments())


def _timeless(step: Step) -> Step:
    """Only what is true of a step that nobody has waited for."""
    return replace(
        step,
        loss=None,
        seconds=None,
        begin=None,
        spans=[],
        communication=[replace(row, seconds=None) for row in step.communication],
        memory=replace(step.memory, series={}, marks={}),
    )


@contextmanager
def _fake_group(rank: int, devices: int) -> Iterator[None]:
    """A world in which collectives return at once, and have done nothing."""
    if devices == 1:
        yield
        return
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=devices)
    try:
        yield
    finally:
        dist.destroy_process_group()
        # What DTensor remembers of a mesh holds for one rank only.
        for name in dir(debug):
            if name.startswith("_clear_") and name.endswith("_cache"):
                getattr(debug, name)()


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Something that a fake rank needs differently."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def _held_while_under_way() -> Iterator[None]:
    """Keeps what is sent and received alive as long as its work, as a real backend does."""
    held: weakref.WeakKeyDictionary[dist.Work, Any] = weakref.WeakKeyDictionary()

    def holding(operation: Callable[..., dist.Work]) -> Callable[..., dist.Work]:
        @functools.wraps(operation)
        def started(group: dist.ProcessGroup, tensors: Any, *args: Any) -> dist.Work:
            work = operation(group, tensors, *args)
            held[work] = tensors
            return work

        return started

    with ExitStack() as stack:
        for name in ("send", "recv"):
            operation = holding(getattr(dist.ProcessGroup, name))
            stack.enter_context(_replaced(dist.ProcessGroup, name, operation))
        yield


class _Chunks:
    """A tensor cut into parts as `torch.chunk` does it, of which each is made when it is needed.

    `fully_shard` looks at two of as many as there are ranks. Parts that are left over are empty.
    """

    def __init__(self, tensor: Tensor, parts: int, dim: int) -> None:
        self._tensor, self._dim = tensor, dim
        self._size = -(-tensor.size(dim) // parts)

    def __getitem__(self, part: int) -> Tensor:
        start, end = part * self._size, min((part + 1) * self._size, self._tensor.size(self._dim))
        if start >= end:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, end - start)


def _in_its_own_phase(meter: Meter, scale: Callable[..., None]) -> Callable[..., None]:
    """A loop over all weights, told apart from those before and after it, as `layers` needs it."""

    def apart(*args: Any) -> None:
        with meter.phase("optimizer"):
            scale(*args)

    return apart


def _no_values(name: str, _seed: int, model: Model) -> Tensor:
    """In place of a weight's first values."""
    return torch.empty(model.shape(name))


def _stage_blocks(blocks: Mapping[int, int], _model: Model, stages: int) -> list[range]:
    """As `parallab.stages.stage_blocks`, with stages of a chosen size; one block in the others."""
    ends = list(accumulate(blocks.get(stage, 1) for stage in range(stages)))
    return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]
