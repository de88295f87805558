"""Bytes of model states on one rank, by closed forms."""

from __future__ import annotations

from parallab.plan import Plan
from parallab.predict.communication import flat_elements, row_elements, row_share
from parallab.predict.parts import held_units
from parallab.spec import Model, count


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
    whole = sum(map(count, units))
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
