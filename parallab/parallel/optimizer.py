"""The optimizer of the weights that a rank owns, in fp32 or with fp32 master weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import SGD, AdamW, Optimizer

from parallab.plan import Plan

LEARNING_RATE = {"adamw": 1e-3, "sgd": 0.1}


def make_optimizer(parameters: Iterable[Tensor], plan: Plan) -> Optimizer:
    """The plan's optimizer over `parameters`."""
    kind: Callable[..., Optimizer] = optimizer_class(plan)
    return kind(list(parameters), lr=LEARNING_RATE[plan.optimizer])


def optimizer_class(plan: Plan) -> type[Optimizer]:
    """AdamW or plain SGD; under bf16 the kind that steps fp32 masters."""
    fp32 = plan.precision == "fp32"
    if plan.optimizer == "adamw":
        return AdamW if fp32 else MasterAdamW
    return SGD if fp32 else MasterSGD


class MasterWeights(Optimizer):
    """Steps fp32 copies of low-precision weights, and writes them back.

    A bf16 weight has 8 bits of precision: an update below 1/256 of it would be lost, so the sum of
    updates is kept in fp32 (Micikevicius et al., arXiv:1710.03740, section 3.1). Each tensor is
    stepped alone, so that only one fp32 gradient exists at a time.
    """

    inner: Callable[..., Optimizer]

    def __init__(self, parameters: Iterable[Tensor], **options: Any) -> None:
        super().__init__(list(parameters), options)
        self._inner: dict[Tensor, Optimizer] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                master = _local(parameter).detach().float()
                self.state[parameter]["master"] = master
                self._inner[parameter] = type(self).inner([master], **options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every weight that has a gradient."""
        for parameter, inner in self._inner.items():
            if parameter.grad is None:
                continue
            master = self.state[parameter]["master"]
            master.grad = _local(parameter.grad).float()
            inner.step()
            master.grad = None
            self.state[parameter].update(inner.state[master])
            _local(parameter).copy_(master)


class MasterAdamW(MasterWeights):
    """AdamW on fp32 masters."""

    inner = AdamW


class MasterSGD(MasterWeights):
    """Plain SGD on fp32 masters."""

    inner = SGD


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
