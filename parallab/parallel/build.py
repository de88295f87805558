"""Puts a plan together: a module, the ways it is split, and how one step runs on this rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from parallab.parallel import zero
from parallab.parallel.data import ClassicDataParallel, DataAxis, Replicate
from parallab.parallel.optimizer import LEARNING_RATE, make_optimizer, optimizer_class
from parallab.plan import Plan

Phase = Callable[[str, int], AbstractContextManager[None]]


class Parts(Protocol):
    """What is asked of the model: units that take their storage one by one."""

    def units(self) -> Iterator[tuple[str, nn.Module]]:
        """The embedding, each block, the head: names and modules."""

    def finish(self, device: torch.device) -> None:
        """Called when every unit has its storage."""


def build(
    module: nn.Module,
    plan: Plan,
    mesh: DeviceMesh | None,
    device: torch.device,
    materialise: Callable[[nn.Module, str], None],
    label: zero.Label,
) -> DataAxis:
    """Splits a module that has no storage yet as the plan says.

    Args:
        module: the model on the meta device; it has the `Parts` protocol.
        materialise: gives one unit its storage and first values, given its name.
        label: tells the memory meter what a tensor is, where the meter cannot know.
    """
    parts: Parts = module  # type: ignore[assignment]
    shard_now = plan.data == "zero3" and mesh is not None
    for name, unit in parts.units():
        materialise(unit, name)
        if shard_now and name.startswith("blocks"):
            assert mesh is not None
            zero.shard_unit(unit, mesh)
    parts.finish(device)
    if shard_now:
        assert mesh is not None
        zero.shard_unit(module, mesh)
    return _data_axis(module, plan, mesh, label)


def _data_axis(
    module: nn.Module, plan: Plan, mesh: DeviceMesh | None, label: zero.Label
) -> DataAxis:
    optimizer = partial(make_optimizer, plan=plan)
    if mesh is None:
        return DataAxis(module, optimizer)
    match plan.data:
        case "dp":
            return ClassicDataParallel(module, optimizer, mesh)
        case "replicate":
            return Replicate(module, optimizer, mesh)
        case "zero1" | "zero2":
            units = _unit_parameters(module)
            return zero.FlatShards(module, units, optimizer, mesh, plan.zero, label)
        case "zero1-torch":
            rate = LEARNING_RATE[plan.optimizer]
            return zero.TorchZero1(module, optimizer_class(plan), rate, mesh)
        case "zero3":
            return zero.FullyShard(module, optimizer, mesh)
    raise AssertionError(f"no data axis {plan.data!r} over several ranks")


def _unit_parameters(module: nn.Module) -> list[list[nn.Parameter]]:
    """Each unit's parameters; a tied weight belongs to the first unit that holds it."""
    parts: Parts = module  # type: ignore[assignment]
    seen: set[nn.Parameter] = set()
    units = []
    for _name, unit in parts.units():
        mine = [p for p in unit.parameters() if p not in seen]
        seen.update(mine)
        units.append(mine)
    return units


def forward_backward(
    data: DataAxis, plan: Plan, tokens: Tensor, targets: Tensor, phase: Phase
) -> Tensor | None:
    """The forward and backward passes of one step on this rank, micro-batch by micro-batch.

    Args:
        tokens, targets: this rank's share, as `DataAxis.share` cut it.
        phase: marks where forward and backward begin and end, given the micro-batch.

    Returns:
        The mean loss of this rank's share, None where it computes none.
    """
    m = plan.micro_batches
    total = torch.zeros((), device=tokens.device)
    for i, (x, y) in enumerate(zip(tokens.chunk(m), targets.chunk(m), strict=True)):
        with data.micro_batch(last=i == m - 1):
            with phase("forward", i):
                loss = data.forward(x, y)
                if data.computes_loss:
                    loss = loss / m
                    total += loss.detach()
            with phase("backward", i):
                data.backward(loss)
                del loss
                if i == m - 1:
                    data.reduce()
    return total if data.computes_loss else None
