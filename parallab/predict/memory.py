"""Bytes of model states on one rank, by closed forms."""

from __future__ import annotations

from parallab.plan import Plan
from parallab.predict.communication import flat_elements, row_elements
from parallab.spec import Model, Shape


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
    e, n = plan.element_bytes, plan.dp
    whole = model.parameters
    per_element = (8 if plan.optimizer == "adamw" else 0) + (4 if plan.precision == "bf16" else 0)
    match plan.data:
        case "dp" if rank:
            # A replica, without optimizer; its gradients have gone to rank 0.
            weights, gradients, stepped = whole, 0, 0
        case "zero1":
            flat = flat_elements(model, n)
            weights, gradients, stepped = flat, flat, flat // n
        case "zero2":
            flat = flat_elements(model, n)
            weights, gradients, stepped = flat, flat // n, flat // n
        case "zero3":
            # `fully_shard` pads what it stores, and steps what is there.
            stored = row_elements(model, n) // n
            weights, gradients, stepped = stored, stored, _row_share(model, n, rank)
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


def _row_share(model: Model, ranks: int, rank: int) -> int:
    """Elements that `fully_shard` leaves on a rank: rows are dealt out like `torch.chunk` does."""

    def share(shapes: dict[str, Shape]) -> int:
        total = 0
        for first, *rest in shapes.values():
            chunk = -(-first // ranks)
            rows = max(0, min(chunk, first - rank * chunk))
            for size in rest:
                rows *= size
            total += rows
        return total

    ends = share(model.embedding_shapes()) + share(model.head_shapes())
    return ends + model.layers * share(model.block_shapes())
