"""Gradient clipping by the global norm, whatever the axes that the gradients are spread over.

Every rank adds up the squares of what it holds, each divided by the number of ranks that hold the
same; one all-reduce of four bytes makes that the square of the norm of all gradients, and all ranks
scale by the same factor (Pascanu et al., arXiv:1211.5063, section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor


def clip(
    held: Iterable[tuple[Tensor, int]], max_norm: float, device: torch.device, alone: bool
) -> None:
    """Scales the gradients of all ranks so that their global norm is at most `max_norm`.

    All ranks call it, also those that hold nothing.

    Args:
        held: this rank's gradients, changed in place, each with the number of ranks (and places on
            this rank) that hold the same one.
        alone: whether this device holds all gradients: then nobody is asked.
    """
    gradients = list(held)
    square = torch.zeros((), device=device)
    for gradient, copies in gradients:
        square += torch.linalg.vector_norm(gradient, dtype=torch.float32).square() / copies
    if not alone:
        dist.all_reduce(square)
    # The small number is torch's clip_grad_norm_'s: a norm of zero divides nothing by zero.
    scale(gradients, (max_norm / (square.sqrt() + 1e-6)).clamp(max=1.0))


def scale(gradients: Iterable[tuple[Tensor, int]], factor: Tensor) -> None:
    """Multiplies gradients in place."""
    for gradient, _ in gradients:
        gradient.mul_(factor.to(gradient.dtype))
