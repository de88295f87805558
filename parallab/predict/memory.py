"""Bytes of model states on one rank, by closed forms."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from parallab.models.spec import Model, count
from parallab.plan import Plan
from parallab.predict.padding import elements, flat_elements, held_rows, row_elements, row_share
from parallab.predict.parts import Unit, each, held_stages, held_units


def model_states(model: Model, plan: Plan, rank: int = 0) -> dict[str, int]:
    """Bytes of weights, gradients and optimizer state that one rank holds at the step's end.

    The gradients are those that exist when the optimizer starts. AdamW keeps two moments in fp32
    for each element, and with bf16 a master copy: 4 + 4 + 8 bytes per parameter in fp32, 2 + 2 + 12
    in bf16 (arXiv:1910.02054, section 3.1). ZeRO divides, in this order, the optimizer state, the
    gradients and the weights by the data-parallel degree (section 5). AdamW's step counters, 4
    bytes per tensor, are not counted here.

    Returns:
        {"parameters", "gradients", "optimizer"}: bytes.
    """
    coords = plan.coordinates(rank)
    units = held_units(model, plan, coords["pp"], coords["tp"])
    e, n = plan.element_bytes, plan.dp
    whole = elements(units)
    per_element = (8 if plan.optimizer == "adamw" else 0) + (4 if plan.precision == "bf16" else 0)
    match plan.data:
        case "dp" if coords["dp"]:
            # A replica, without optimizer; its gradients have gone to rank 0.
            weights, gradients, stepped = whole, 0, 0
        case "zero1":
            flat = flat_elements(units, n)
            weights, gradients, stepped = flat, flat, flat // n
        case "zero2":
            flat = flat_elements(units, n)
            weights, gradients, stepped = flat, flat // n, flat // n
        case "zero3":
            # `fully_shard` pads what it stores, and steps what is there.
            stored = row_elements(units, n) // n
            weights, gradients, stepped = stored, stored, row_share(units, n, coords["dp"])
        case "zero1-torch":
            # Dealt out by whole tensors: only the mean is a closed form.
            weights, gradients, stepped = whole, whole, -(-whole // n)
        case _:
            weights, gradients, stepped = whole, whole, whole
    return {
        "parameters": weights * e,
        "gradients": gradients * e,
        "optimizer": stepped * per_element,
    }


def held_states(model: Model, plan: Plan, rank: int = 0) -> dict[str, int]:
    """The same to the last byte, as a step measures it: with step counters and buffers.

    Returns:
        {"parameters", "gradients", "optimizer", "buffers"}: bytes.
    """
    states = model_states(model, plan, rank)
    stepped = stepped_elements(model, plan, rank)
    if plan.data == "zero1-torch":
        per_element = (8 if plan.optimizer == "adamw" else 0) + 4 * (plan.precision == "bf16")
        states["optimizer"] = per_element * sum(stepped)
    if plan.optimizer == "adamw":
        states["optimizer"] += 4 * len(stepped)
    coords = plan.coordinates(rank)
    return {**states, "buffers": rotary_bytes(model, plan) * len(held_stages(plan, coords["pp"]))}


def rotary_bytes(model: Model, plan: Plan) -> int:
    """A stage's table of rotary positions: a cosine and a sine in fp32 for each pair and token."""
    return plan.seq * model.rotary_dim * 4


def stepped_elements(model: Model, plan: Plan, rank: int) -> list[int]:
    """The sizes of the tensors that a rank's optimizer steps, in its order."""
    coords = plan.coordinates(rank)
    units = held_units(model, plan, coords["pp"], coords["tp"])
    if plan.dp > 1:
        match plan.data:
            case "dp" if coords["dp"]:
                return []
            case "zero1" | "zero2":
                return each(units, lambda unit: flat_elements([unit], plan.dp) // plan.dp)
            case "zero3":
                return [
                    held_rows(first, plan.dp, coords["dp"]) * math.prod(rest)
                    for unit in units
                    for first, *rest in unit.values()
                ]
            case "replicate" if plan.pp > 1:
                return each(units, count)
            case "zero1-torch":
                return _dealt_out(units, plan.dp)[coords["dp"]]
    return _tensors(units)


def _tensors(units: Iterable[Unit]) -> list[int]:
    return [math.prod(shape) for unit in units for shape in unit.values()]


def _dealt_out(units: Iterable[Unit], ranks: int) -> list[list[int]]:
    """Whole tensors dealt out to ranks, the largest first, each to the rank that has least.

    (torch/distributed/optim/zero_redundancy_optimizer.py, `_partition_parameters`.)
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    least = [(0, rank) for rank in range(ranks)]
    for size in sorted(_tensors(units), reverse=True):
        held, rank = heapq.heappop(least)
        shares[rank].append(size)
        heapq.heappush(least, (held + size, rank))
    return shares


def optimizer_temporary(plan: Plan, stepped: Sequence[int], kernels: str) -> int:
    """Bytes that a step of the optimizer takes and gives back.

    On the CPU torch steps one tensor after the other: AdamW takes a square root and its quotient,
    and still holds the quotient of the tensor before (torch/optim/adamw.py,
    `_single_tensor_adamw`). On CUDA it steps all at once and takes the square roots of all
    (`_multi_tensor_adamw`). Masters are stepped alone, each with an fp32 copy of its gradient
    (`parallel.optimizer`). Plain SGD takes nothing.
    """
    adamw, largest = plan.optimizer == "adamw", max(stepped, default=0)
    if plan.precision == "bf16":
        copies = 1 + (adamw if kernels == "cuda" else 2 * adamw)
        return 4 * copies * largest
    if not adamw:
        return 0
    if kernels == "cuda":
        return 4 * sum(stepped)
    return 4 * max((before + 2 * n for before, n in pairwise([0, *stepped])), default=0)
