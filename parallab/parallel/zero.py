"""ZeRO: the data axis without redundant copies (Rajbhandari et al., arXiv:1910.02054).

                   weights    gradients   optimizer      sent per step (P = bytes of weights)
    DDP            all        all         all            P all-reduce
    ZeRO-1         all        all         1/N            P reduce-scatter + P all-gather
    ZeRO-2         all        1/N         1/N            P reduce-scatter + P all-gather
    ZeRO-3         1/N        1/N         1/N            P reduce-scatter + 2P all-gather

Stages 1 and 2 are ours, with flat shards as in the paper (torch has no stage 2, and its stage 1
sends half as much again). Stage 3 is torch's `fully_shard`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

from parallab.parallel.data import Loss, MakeOptimizer, Replicate, SharedBatch
from parallab.parallel.flat import FlatUnit
from parallab.parallel.renamed import all_gather_flat, reduce_scatter_flat

Label = Callable[[Tensor, str], None]


class FlatShards(SharedBatch):
    """ZeRO-1 and ZeRO-2: weights replicated, the optimizer's share of each unit on its rank.

        unit's flat weights     │ rank 0 │ rank 1 │ rank 2 │ rank 3 │  rank r owns and steps part r
        backward, unit done  →  reduce-scatter of its flat gradients: part r arrives averaged
        step                 →  AdamW on part r, in place; all-gather of the parts

    Stage 1 keeps the full gradients until the step's end and reduces once a step; stage 2 reduces
    each micro-batch, unit by unit as the backward pass completes them, and frees them at once.
    Stage 0 shards nothing: an all-reduce of the flat gradients, as DDP's, for pipelines, whose
    schedules DDP cannot follow.

    Args:
        module: the model.
        units: its parameters in the units that are reduced together.
        stage: 0, 1 or 2.
        label: tells the memory meter what a tensor is.
    """

    def __init__(
        self,
        module: nn.Module,
        units: list[list[nn.Parameter]],
        make_optimizer: MakeOptimizer,
        loss: Loss,
        mesh: DeviceMesh,
        stage: int,
        label: Label,
    ) -> None:
        def of_shards(_weights: list[Tensor]) -> torch.optim.Optimizer:
            parts = (self.rank, self.size) if stage else (0, 1)
            self.units = [Shard(unit, *parts) for unit in units]
            return make_optimizer([unit.shard for unit in self.units])

        super().__init__(module, of_shards, loss, mesh)
        self.stage, self._label = stage, label
        self.copies = 1 if stage else self.size
        self._last = False
        self._under_way: list[tuple[Shard, dist.Work, Tensor, Tensor]] = []
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._completed(unit))
            for unit in self.units
            for parameter in unit.parameters
        ]

    def micro_batch(self, last: bool) -> AbstractContextManager[None]:
        @contextmanager
        def surrounded() -> Iterator[None]:
            self._last = last
            yield
            self._last = False

        return surrounded()

    def reduce(self) -> None:
        for unit in self.units:
            # A pipeline schedule tells nobody which backward pass is the last, and a zero-bubble
            # schedule's weight passes call no hooks: what is still here is complete now.
            for parameter in unit.parameters:
                if parameter.grad is not None:
                    unit.collect(parameter)
            if unit.gradients is not None and not unit.reducing:
                self._reduce(unit)
        while self._under_way:
            self._finish_oldest()

    def update(self) -> None:
        assert self.optimizer is not None
        self.optimizer.step()
        if self.stage:
            self._gather()
        self.free_gradients()

    def held_gradients(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        for unit in self.units:
            assert unit.shard.grad is not None
            yield from unit.parts(unit.shard.grad)

    def _gather(self) -> None:
        gathers = [
            all_gather_flat(unit.flat, unit.shard.detach(), group=self.group, async_op=True)
            for unit in self.units
        ]
        for gather in gathers:
            assert gather is not None
            gather.wait()

    def free_gradients(self) -> None:
        for unit in self.units:
            unit.free_gradients()
            unit.shard.grad = None
            unit.reducing = False

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _completed(self, unit: Shard) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            assert isinstance(parameter, nn.Parameter)
            unit.collect(parameter)
            unit.missing -= 1
            if unit.missing == 0:
                unit.missing = len(unit.parameters)
                if self.stage == 2 or self._last:
                    self._reduce(unit)

        return hook

    def _reduce(self, unit: Shard) -> None:
        assert unit.gradients is not None
        gradients = unit.gradients
        self._label(gradients, "gradients")
        if self.stage == 2:
            unit.free_gradients()
            # One unit's full gradients at a time: waiting here frees those of the one before.
            while self._under_way:
                self._finish_oldest()
        unit.reducing = True
        average: dict[str, Any] = dict(op=dist.ReduceOp.AVG, group=self.group, async_op=True)
        if self.stage == 0:
            mine = gradients
            work = dist.all_reduce(mine, **average)
        else:
            mine = self._place_of_share(unit, gradients)
            work = reduce_scatter_flat(mine, gradients, **average)
        assert work is not None
        self._under_way.append((unit, work, gradients, mine))

    def _place_of_share(self, unit: Shard, gradients: Tensor) -> Tensor:
        """Where this rank's averaged part arrives: in stage 1, over its own part of the full."""
        if self.stage == 1:
            return gradients.chunk(self.size)[self.rank]
        mine = torch.empty_like(unit.shard)
        self._label(mine, "gradients")
        return mine

    def _finish_oldest(self) -> None:
        unit, work, _gradients, mine = self._under_way.pop(0)
        work.wait()
        unit.reducing = self.stage != 2
        unit.shard.grad = mine if unit.shard.grad is None else unit.shard.grad.add_(mine)


class Shard(FlatUnit):
    """A flat unit, and this rank's part of it as a parameter that shares its memory.

    Attributes:
        missing: parameters whose gradients the backward pass under way has yet to complete.
        reducing: whether this step's gradients are on their way, or have arrived.
    """

    def __init__(self, parameters: list[nn.Parameter], rank: int, ranks: int) -> None:
        super().__init__(parameters, ranks)
        size = self.flat.numel() // ranks
        self._start = rank * size
        self.shard = nn.Parameter(self.flat[self._start : self._start + size])
        self.missing = len(self.parameters)
        self.reducing = False

    def parts(self, shard: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Which piece of a tensor like the shard belongs to which parameter."""
        offset = -self._start
        for parameter in self.parameters:
            piece = shard[max(0, offset) : max(0, offset + parameter.numel())]
            if piece.numel():
                yield parameter, piece
            offset += parameter.numel()


class TorchZero1(Replicate):
    """torch's ZeRO-1: DDP, and whole parameters dealt out to ranks, which broadcast them after."""

    def __init__(
        self,
        module: nn.Module,
        optimizer_class: type[torch.optim.Optimizer],
        learning_rate: float,
        loss: Loss,
        mesh: DeviceMesh,
    ) -> None:
        def dealt_out(parameters: list[Tensor]) -> torch.optim.Optimizer:
            return ZeroRedundancyOptimizer(
                parameters,
                optimizer_class=optimizer_class,
                process_group=self.group,
                parameters_as_bucket_view=True,
                lr=learning_rate,
            )

        super().__init__(module, dealt_out, loss, mesh)


class FullyShard(SharedBatch):
    """ZeRO-3 through torch's `fully_shard` (FSDP2; Zhao et al., arXiv:2304.11277).

        forward   gather block 0 │ compute, free │ gather block 1 │ compute, free │ ...
        backward  gather block n │ gradients, free, reduce-scatter │ gather block n-1 │ ...

    The module is already sharded: `shard_unit` splits each part as soon as it has its storage, so
    that no rank ever holds the whole model.
    """


def shard_unit(unit: nn.Module, mesh: DeviceMesh) -> None:
    """Shards a block, or what remains of the whole module, over the data axis.

    Weights are freed after the forward pass and gathered again for the backward pass, the root's
    too: that is the stage's 2P of all-gather.
    """
    fully_shard(unit, mesh=mesh["dp"], reshard_after_forward=True)
