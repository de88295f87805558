"""The data axis: every rank trains on its share of the batch.

`DataAxis` is what a step needs of it; the base class is the single device, where nothing is shared.
DDP and classic DataParallel follow; the ZeRO stages are in `zero.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from parallab.parallel.flat import FlatUnit
from parallab.parallel.renamed import NO_BUFFER_BROADCAST


class HasWeights(Protocol):
    """A module that knows its weights' names in the whole model."""

    def named_weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Name and weight."""


MakeOptimizer = Callable[[list[Tensor]], Optimizer]
Loss = Callable[[Tensor, Tensor], Tensor]


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in fp32 of logits (batch, seq, vocab) against ids (batch, seq)."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class DataAxis:
    """One device: the whole batch, all weights, no communication.

    Attributes:
        module: holds this rank's weights under their own names.
        optimizer: steps the weights that this rank owns; None where it owns none.
        computes_loss: whether this rank knows the loss of its share.
        copies: ranks of the data axis that hold the same gradients after `reduce`.
    """

    computes_loss = True
    copies = 1

    def __init__(self, module: nn.Module, make_optimizer: MakeOptimizer, loss: Loss) -> None:
        self.module = module
        self.forward_module = module
        self.loss = loss
        self.optimizer: Optimizer | None = make_optimizer(list(module.parameters()))

    def share(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """This rank's part of the global batch."""
        return tokens, targets

    def micro_batch(self, last: bool) -> AbstractContextManager[None]:
        """Surrounds one micro-batch; gradients that travel once a step do so in the last."""
        return nullcontext()

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The loss of one micro-batch of this rank."""
        return self.loss(self.forward_module(tokens), targets)

    def backward(self, loss: Tensor) -> None:
        """Gradients of one micro-batch, added to those of the step."""
        loss.backward()

    def reduce(self) -> None:
        """Ends the backward pass: on return this rank's gradients are the global batch's."""

    def update(self) -> None:
        """One optimizer step, and whatever brings the new weights to every rank."""
        if self.optimizer is not None:
            self.optimizer.step()
        self.free_gradients()

    def free_gradients(self) -> None:
        """Forgets the step's gradients."""
        self.module.zero_grad(set_to_none=True)

    def held_gradients(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """What this rank keeps of each weight's gradient after `reduce`, to be changed in place."""
        for weight in self.module.parameters():
            if weight.grad is not None:
                yield weight, local(weight.grad)

    def gathered_weights(self) -> dict[str, Tensor]:
        """This rank's weights gathered over the data axis; its ranks must call it together.

        Keys are names in `Model.units`; a tensor-parallel rank's values are its slices.
        """
        return {
            name: whole(p.detach()) for name, p in cast(HasWeights, self.module).named_weights()
        }

    def close(self) -> None:
        """Lets go of the module: hooks live in C++, where the collector sees no cycle."""


class SharedBatch(DataAxis):
    """Several ranks, each with an equal part of the batch.

    Attributes:
        group, rank, size: the data axis's process group, and this rank's place in it.
    """

    def __init__(
        self, module: nn.Module, make_optimizer: MakeOptimizer, loss: Loss, mesh: DeviceMesh
    ) -> None:
        self.group = mesh.get_group("dp")
        self.rank, self.size = mesh.get_local_rank("dp"), dist.get_world_size(self.group)
        super().__init__(module, make_optimizer, loss)

    def share(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return share_of(tokens, self.rank, self.size), share_of(targets, self.rank, self.size)


class Replicate(SharedBatch):
    """DistributedDataParallel (Li et al., arXiv:2006.15704).

    rank 0  forward  backward ░░▓▓▓▓  step      every rank holds all weights;
    rank 1  forward  backward ░░▓▓▓▓  step      ▓ all-reduce of a bucket of gradients,
                                                  while the backward pass goes on
    """

    def __init__(
        self, module: nn.Module, make_optimizer: MakeOptimizer, loss: Loss, mesh: DeviceMesh
    ) -> None:
        super().__init__(module, make_optimizer, loss, mesh)
        # The rotary table is the same everywhere; a broadcast would add bytes no paper has.
        self.forward_module = self.ddp = DistributedDataParallel(
            module,
            process_group=self.group,
            gradient_as_bucket_view=True,
            **NO_BUFFER_BROADCAST,
        )
        self.copies = self.size

    def micro_batch(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self.ddp.no_sync()

    def free_gradients(self) -> None:
        # The buckets stay allocated for the next step; cleared views keep that in sight.
        self.module.zero_grad(set_to_none=False)


class ClassicDataParallel(SharedBatch):
    """DataParallel as torch.nn.DataParallel runs it, over the process group.

        rank 0  scatter batch, broadcast weights │ forward │ gather logits, loss, scatter gradient
                │ backward │ reduce gradients │ step
        others  receive ...                      │ forward │ send logits, receive gradient
                │ backward │ send gradients

    Rank 0 alone owns the batch, the loss, the gathered logits and the optimizer: the hot spot. The
    other ranks' replicas live from a step's first broadcast to its end.
    """

    def __init__(
        self, module: nn.Module, make_optimizer: MakeOptimizer, loss: Loss, mesh: DeviceMesh
    ) -> None:
        self.unit = FlatUnit(module.parameters(), parts=1)
        self.output: Tensor
        super().__init__(module, make_optimizer, loss, mesh)
        self.root = dist.get_global_rank(self.group, 0)
        self.computes_loss = self.rank == 0
        if self.rank:
            self.optimizer = None
            self._free_replica()
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self.unit.collect)
            for parameter in self.unit.parameters
        ]

    def share(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if self.rank == 0:
            return tokens, targets
        # Only rank 0 owns the batch; the others know the shape of what they will be sent.
        empty = torch.empty_like(share_of(tokens, self.rank, self.size))
        return empty, empty

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        mine = self._scatter(tokens) if self.rank == 0 else self._scatter_into(tokens)
        self._hold_replica()
        dist.broadcast(self.unit.flat, self.root, group=self.group)
        self.output = self.module(mine)
        parts = self._gather(self.output.detach())
        if parts is None:
            return self.output
        self.gathered = torch.cat(parts).requires_grad_()
        return self.loss(self.gathered, targets)

    def backward(self, loss: Tensor) -> None:
        if self.rank == 0:
            loss.backward()
            assert self.gathered.grad is not None
            gradient = self._scatter(self.gathered.grad)
            del self.gathered
        else:
            gradient = self._scatter_into(torch.empty_like(self.output))
        self.output.backward(gradient)
        del self.output
        # In place: rank 0 holds the step's gradients so far, the others this micro-batch's.
        assert self.unit.gradients is not None
        dist.reduce(self.unit.gradients, self.root, op=dist.ReduceOp.SUM, group=self.group)
        if self.rank:
            self.unit.free_gradients()

    def free_gradients(self) -> None:
        self.unit.free_gradients()
        if self.rank:
            self._free_replica()

    def gathered_weights(self) -> dict[str, Tensor]:
        self._hold_replica()
        dist.broadcast(self.unit.flat, self.root, group=self.group)
        weights = {name: weight.clone() for name, weight in super().gathered_weights().items()}
        if self.rank:
            self._free_replica()
        return weights

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _scatter(self, whole_batch: Tensor) -> Tensor:
        parts = [part.contiguous() for part in whole_batch.chunk(self.size)]
        mine = torch.empty_like(parts[0])
        dist.scatter(mine, parts, self.root, group=self.group)
        return mine

    def _scatter_into(self, mine: Tensor) -> Tensor:
        dist.scatter(mine, None, self.root, group=self.group)
        return mine

    def _gather(self, output: Tensor) -> list[Tensor] | None:
        parts = [torch.empty_like(output) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(output.contiguous(), parts, self.root, group=self.group)
        return parts

    def _hold_replica(self) -> None:
        storage = self.unit.flat.untyped_storage()
        if storage.size() == 0:
            storage.resize_(self.unit.flat.numel() * self.unit.flat.element_size())

    def _free_replica(self) -> None:
        self.unit.flat.untyped_storage().resize_(0)


def share_of(batch: Tensor, rank: int, ranks: int) -> Tensor:
    """Equal consecutive shares of a batch's sequences."""
    share = len(batch) // ranks
    return batch.narrow(0, rank * share, share).contiguous()


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor, any other as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor gathered, any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
