"""Holds a strategy against one device: same text, same steps, the same loss and weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.rank.trainer import Trainer


def verify(
    model: Model,
    plan: Plan,
    device: torch.device,
    *,
    seed: int = 0,
    text: str | None = None,
    steps: int = 3,
) -> dict[str, Any]:
    """Trains this rank's part, then the whole model on rank 0 alone; all ranks call it.

    Every rank compares the weights that it would go on with, so a copy that has drifted on any rank
    shows.

    Returns:
        rank; losses (None where this rank computes none) and reference_losses of each step;
        tensors, a list of [name, largest absolute difference] in the model's order; finite, whether
        every weight and loss is a number.
    """
    trainer = Trainer(model, plan, device, seed=seed, text=text, trace_every=0)
    try:
        rank = trainer.describe()["rank"]
        losses = [trainer.step().loss for _ in range(steps)]
        weights = {n: w.cpu().clone() for n, w in trainer.data.gathered_weights().items()}
        slices = trainer.split.slices
    finally:
        trainer.close()
    reference_losses, reference = _alone(model, plan, device, rank, seed, text, steps)
    differences = []
    for name, whole in _shared(model, reference, device):
        if name in weights:  # a pipeline's rank holds some, a tensor-parallel one slices
            mine = slices[name].of(whole) if name in slices else whole
            difference = (weights[name].float() - mine.cpu().float()).abs().max().item()
            differences.append([name, difference])
    numbers = [*weights.values(), torch.tensor([x for x in losses if x is not None])]
    return {
        "rank": rank,
        "losses": losses,
        "reference_losses": reference_losses,
        "tensors": differences,
        "finite": all(bool(torch.isfinite(n).all()) for n in numbers),
    }


def _alone(
    model: Model, plan: Plan, device: torch.device, rank: int, seed: int, text: str | None,
    steps: int,
) -> tuple[list[float | None], dict[str, Tensor] | None]:  # fmt: skip
    """Losses and weights of one device, which is rank 0; the weights are None on the others."""
    losses: list[Any] = [None]
    weights = None
    if rank == 0:
        alone = Trainer(model, plan.alone(), device, seed=seed, text=text, trace_every=0)
        try:
            losses = [[alone.step().loss for _ in range(steps)]]
            weights = {name: w.clone() for name, w in alone.data.gathered_weights().items()}
        finally:
            alone.close()
    if plan.devices > 1:
        dist.broadcast_object_list(losses, src=0)
    return losses[0], weights


def _shared(
    model: Model, weights: dict[str, Tensor] | None, device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    """Rank 0's weights on every rank, one after the other, in the model's order."""
    for unit in model.units().values():
        for name, shape in unit.items():
            if weights is not None:
                whole = weights[name].float()
            else:
                whole = torch.empty(shape, device=device)
            if dist.is_initialized() and dist.get_world_size() > 1:
                dist.broadcast(whole, src=0)
            yield name, whole
