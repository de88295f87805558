"""Holds a strategy against one device: same text, same steps, the same loss and weights."""

from __future__ import annotations

from typing import Any

import torch

from parallab.plan import Plan
from parallab.rank.trainer import Trainer
from parallab.spec import Model


def verify(
    model: Model,
    plan: Plan,
    device: torch.device,
    *,
    seed: int = 0,
    text: str | None = None,
    steps: int = 3,
) -> dict[str, Any]:
    """Trains this rank's part, then the whole model alone, and compares; all ranks call it.

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
        weights = {name: w.cpu().clone() for name, w in trainer.data.full_weights().items()}
    finally:
        trainer.close()
    alone = Trainer(model, plan.alone(), device, seed=seed, text=text, trace_every=0)
    try:
        reference_losses = [alone.step().loss for _ in range(steps)]
        reference = {name: w.cpu() for name, w in alone.data.full_weights().items()}
    finally:
        alone.close()
    assert weights.keys() == reference.keys(), weights.keys() ^ reference.keys()
    differences = [
        [name, (weights[name].float() - whole.float()).abs().max().item()]
        for name, whole in reference.items()
    ]
    numbers = [*weights.values(), torch.tensor([x for x in losses if x is not None])]
    return {
        "rank": rank,
        "losses": losses,
        "reference_losses": reference_losses,
        "tensors": differences,
        "finite": all(bool(torch.isfinite(n).all()) for n in numbers),
    }
