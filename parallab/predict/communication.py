"""Bytes that a rank sends, by closed forms.

Payload is the full tensor of a collective: the output of an all-gather, the input of a
reduce-scatter, the tensor of an all-reduce. Wire bytes are what one rank sends if the collective
runs on an ideal ring; libraries may send more (Gloo's reduce-scatter is an all-reduce) or, with
trees, in another pattern.
"""

from __future__ import annotations

from parallab.plan import Plan
from parallab.spec import Model, Shape, count

# Fewest bytes that rank 0 of the group sends on a ring, as a function of n = group size; the ring
# algorithms of Patarasuk and Yuan, J. Parallel Distrib. Comput. 69(2), 2009.


def wire_bytes(op: str, payload_bytes: int, group_size: int, position: int = 0) -> int:
    """Bytes that one rank sends for one collective on an ideal ring.

    Args:
        op: the operation as a Report names it.
        payload_bytes: its payload.
        group_size: ranks in its group.
        position: this rank's place counted from the root (0 is the root), for rooted operations.

    Returns:
        all-reduce 2(n-1)/n of the payload; all-gather, reduce-scatter and all-to-all (n-1)/n.
        Broadcast is a chain that starts at the root: every rank but the last passes the payload
        on. Reduce is the same chain backwards. A scatter's root sends (n-1)/n, in a gather every
        other rank sends 1/n. A send is the tensor itself, a receive nothing: point-to-point counts
        at the sender.

    Raises:
        ValueError: an operation that no Report has.
    """
    n = group_size
    if n == 1 or op in ("barrier", "recv"):
        return 0
    match op:
        case "all_reduce":
            return 2 * (n - 1) * payload_bytes // n
        case "all_gather" | "reduce_scatter" | "all_to_all":
            return (n - 1) * payload_bytes // n
        case "broadcast":
            return payload_bytes if position < n - 1 else 0
        case "reduce":
            return payload_bytes if position else 0
        case "scatter":
            return 0 if position else (n - 1) * payload_bytes // n
        case "gather":
            return payload_bytes // n if position else 0
        case "send":
            return payload_bytes
    raise ValueError(f"There is no operation called {op!r}.")


def payload_per_step(model: Model, plan: Plan) -> dict[str, int]:
    """Payload bytes of one warm step on the data axis: operation -> bytes, the same on every rank.

    With P bytes of weights (padding included where shards need it) and n ranks: DDP all-reduces P
    (arXiv:2006.15704, section 3); ZeRO-1 and 2 reduce-scatter P and all-gather P; ZeRO-3
    all-gathers P twice and reduce-scatters P (arXiv:1910.02054, section 7). ZeRO-2 and 3 reduce
    every micro-batch; the others once a step.
    """
    weights = model.parameters * plan.element_bytes
    flat = flat_elements(model, plan.dp) * plan.element_bytes
    rows = row_elements(model, plan.dp) * plan.element_bytes
    m = plan.micro_batches
    if plan.dp == 1:
        return {}
    match plan.data:
        case "none":
            return {}
        case "dp":
            ids = plan.batch * plan.seq * 8
            logits = plan.batch * plan.seq * model.vocab * plan.element_bytes
            return {
                "scatter": ids + logits,
                "broadcast": m * weights,
                "gather": logits,
                "reduce": m * weights,
            }
        case "replicate":
            return {"all_reduce": weights}
        case "zero1":
            return {"reduce_scatter": flat, "all_gather": flat}
        case "zero1-torch":
            return {"all_reduce": weights, "broadcast": weights}
        case "zero2":
            return {"reduce_scatter": m * flat, "all_gather": flat}
        case "zero3":
            return {"all_gather": 2 * m * rows, "reduce_scatter": m * rows}


def flat_elements(model: Model, ranks: int) -> int:
    """Elements of ZeRO-1 and 2's flat buffers: each unit padded to a multiple of `ranks`."""
    ends = (model.embedding_shapes(), model.head_shapes())
    total = sum(_padded(count(shapes), ranks) for shapes in ends)
    return total + model.layers * _padded(count(model.block_shapes()), ranks)


def row_elements(model: Model, ranks: int) -> int:
    """Elements that ZeRO-3 gathers: `fully_shard` pads each tensor's first dimension to ranks."""

    def rows(shapes: dict[str, Shape]) -> int:
        return sum(count({"": (_padded(s[0], ranks), *s[1:])}) for s in shapes.values())

    ends = rows(model.embedding_shapes()) + rows(model.head_shapes())
    return ends + model.layers * rows(model.block_shapes())


def _padded(elements: int, ranks: int) -> int:
    return -(-elements // ranks) * ranks
