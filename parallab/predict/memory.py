"""Bytes of model states on one rank, by closed forms."""

from __future__ import annotations

from parallab.plan import Plan
from parallab.predict.communication import flat_elements
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
    share = whole
    if plan.data in ("zero1", "zero2"):
        share = flat_elements(model, n) // n
    elif plan.data == "zero3":
        share = _row_share(model, n, rank)
    elif plan.data == "zero1-torch":
        share = -(-whole // n)  # dealt out by whole tensors: only the mean is a closed form
    elif plan.data == "dp" and rank:
        return {"parameters": whole * e, "gradients": 0, "optimizer": 0}
    held_flat = flat_elements(model, n) if plan.data in ("zero1", "zero2") else whole
    per_element = (8 if plan.optimizer == "adamw" else 0) + (4 if plan.precision == "bf16" else 0)
    return {
        "parameters": (share if plan.zero == 3 else held_flat) * e,
        "gradients": (share if plan.zero >= 2 else held_flat) * e,
        "optimizer": share * per_element,
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
