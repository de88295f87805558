"""Bytes that a rank sends, by closed forms.

Payload is the full tensor of a collective: the output of an all-gather, the input of a
reduce-scatter, the tensor of an all-reduce. Wire bytes are what one rank sends if the collective
runs on an ideal ring; libraries may send more (Gloo's reduce-scatter is an all-reduce) or, with
trees, in another pattern.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial

from parallab.plan import Plan
from parallab.predict.parts import (
    EMBEDDING,
    Unit,
    blocks_of_stage,
    held_stages,
    held_units,
    sliced,
)
from parallab.spec import Model, count
from parallab.stages import rank_of_stage, stage_count

ORIGIN: Mapping[str, int] = {"dp": 0, "pp": 0, "tp": 0}

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


def receivers(op: str, sent_bytes: int, group_size: int, position: int = 0) -> dict[int, int]:
    """To whom the wire bytes of one operation go.

    Args:
        sent_bytes: what `wire_bytes` says.
        group_size: ranks in its group.
        position: this rank's place counted from the root, or from a send's receiver.

    Returns:
        Distance from this rank to the receiver, round the group -> bytes. A ring passes on to the
        next rank, a reducing chain to the one before; scatter and all-to-all send to each, gather
        to the root.
    """
    if not sent_bytes:
        return {}
    match op:
        case "send" | "gather":
            return {-position: sent_bytes}
        case "reduce":
            return {-1: sent_bytes}
        case "scatter" | "all_to_all":
            each, rest = divmod(sent_bytes, group_size - 1)
            return {at: each + (at <= rest) for at in range(1, group_size)}
    return {1: sent_bytes}


Payload = dict[tuple[str, str], int]


def payload_per_step(model: Model, plan: Plan, coords: Mapping[str, int] = ORIGIN) -> Payload:
    """Payload bytes of one warm step of the rank at `coords`: (operation, axis) -> bytes."""
    payload: Payload = {}
    for part in (_data_axis, _pipeline_axis, _tensor_axis):
        for key, size in part(model, plan, coords).items():
            payload[key] = payload.get(key, 0) + size
    if plan.clip is not None and plan.devices > 1:
        payload["all_reduce", "world"] = 4  # the square of the global norm
    return {key: size for key, size in payload.items() if size}


def _data_axis(model: Model, plan: Plan, coords: Mapping[str, int]) -> Payload:
    """With P bytes of weights on a rank (padding included where shards need it): DDP all-reduces P
    (arXiv:2006.15704, section 3); ZeRO-1 and 2 reduce-scatter P and all-gather P; ZeRO-3
    all-gathers P twice and reduce-scatters P (arXiv:1910.02054, section 7). ZeRO-2 and 3 reduce
    every micro-batch, the others once a step.

    In a pipeline ZeRO-3 reduces once, and keeps a stage's weights from a backward pass until the
    next forward pass has used them: it gathers for a forward pass unless a backward pass came
    before, and for a backward pass that follows a forward pass. In whatever order the m
    micro-batches come, that is m + 1 times.
    """
    if plan.dp == 1:
        return {}
    units = held_units(model, plan, coords["pp"], coords["tp"])
    e, n, m = plan.element_bytes, plan.dp, plan.micro_batches
    weights = sum(map(count, units)) * e
    flat = flat_elements(units, n) * e
    match plan.data:
        case "dp":
            ids = plan.batch * plan.seq * 8
            logits = plan.batch * plan.seq * model.vocab * e
            return {
                ("scatter", "dp"): ids + logits,
                ("broadcast", "dp"): m * weights,
                ("gather", "dp"): logits,
                ("reduce", "dp"): m * weights,
            }
        case "replicate":
            return {("all_reduce", "dp"): weights}
        case "zero1":
            return {("reduce_scatter", "dp"): flat, ("all_gather", "dp"): flat}
        case "zero1-torch":
            return {("all_reduce", "dp"): weights, ("broadcast", "dp"): weights}
        case "zero2":
            return {("reduce_scatter", "dp"): m * flat, ("all_gather", "dp"): flat}
        case "zero3":
            rows = row_elements(units, n) * e
            gathers, reductions = (m + 1, 1) if plan.pp > 1 else (2 * m, m)
            return {
                ("all_gather", "dp"): gathers * rows,
                ("reduce_scatter", "dp"): reductions * rows,
            }
    return {}


def _pipeline_axis(model: Model, plan: Plan, coords: Mapping[str, int]) -> Payload:
    """Every boundary between stages on different ranks passes each micro-batch's activations on and
    their gradients back (arXiv:1811.06965, section 2.3): batch x seq x hidden elements a step each
    way. A tied embedding adds an all-reduce of its gradient between first and last stage
    (arXiv:2104.04473, section 3.2), of the shard where ZeRO has left one.
    """
    if plan.pp == 1:
        return {}
    stages = stage_count(plan.pp, plan.schedule)
    where = partial(rank_of_stage, plan.schedule, ranks=plan.pp)
    boundary = plan.rank_batch * plan.seq * model.hidden * plan.element_bytes
    if plan.sequence_parallel:
        boundary //= plan.tp
    borders = 0
    for stage in held_stages(plan, coords["pp"]):
        for neighbour in (stage - 1, stage + 1):
            if 0 <= neighbour < stages and where(neighbour) != coords["pp"]:
                borders += 1
    payload = {("send", "pp"): borders * boundary, ("recv", "pp"): borders * boundary}
    ends = [where(0), where(stages - 1)]
    if model.tied and coords["pp"] in ends and ends[0] != ends[1]:
        copy = {EMBEDDING: sliced(EMBEDDING, (model.vocab, model.hidden), plan.tp, coords["tp"])}
        payload["all_reduce", "pp"] = _held_share(copy, plan, coords["dp"]) * plan.element_bytes
    return payload


def _held_share(unit: Unit, plan: Plan, rank: int) -> int:
    """Elements of a unit's gradient that a data-parallel rank keeps."""
    if plan.data in ("zero1", "zero2"):
        return flat_elements([unit], plan.dp) // plan.dp
    if plan.data == "zero3":
        return row_share([unit], plan.dp, rank)
    return count(unit)


def _tensor_axis(model: Model, plan: Plan, coords: Mapping[str, int]) -> Payload:
    """Four all-reduces of the activations a layer, two forward and two backward
    (arXiv:1909.08053, section 3), one more where recomputation repeats attention's; one for the
    embedding forward, one for the head backward; and three numbers a token for the loss. With
    sequence parallelism each is an all-gather and a reduce-scatter (arXiv:2205.05198, section
    4.2.2), and the weights that every rank holds are all-reduced in backward.
    """
    if plan.tp == 1:
        return {}
    stages = stage_count(plan.pp, plan.schedule)
    held = held_stages(plan, coords["pp"])
    blocks = sum(blocks_of_stage(model, plan, stage) for stage in held)
    ends = (0 in held) + (stages - 1 in held)
    e = plan.element_bytes
    tokens = plan.rank_batch * plan.seq
    activations = tokens * model.hidden * e
    again = plan.recompute == "full"
    reduced = 3 * tokens * 4 if stages - 1 in held else 0
    reduced += plan.micro_batches * _shared_weights(model, plan, held) * e
    if not plan.sequence_parallel:
        reduced += activations * ((5 if again else 4) * blocks + ends)
        return {("all_reduce", "tp"): reduced}
    return {
        ("all_gather", "tp"): activations * ((6 if again else 4) * blocks + ends),
        ("reduce_scatter", "tp"): activations * ((5 if again else 4) * blocks + ends),
        ("all_reduce", "tp"): reduced,
    }


def _shared_weights(model: Model, plan: Plan, held: list[int]) -> int:
    """Elements of weights that each tensor-parallel rank uses on its own part of the data."""

    def matching(unit: Unit, names: tuple[str, ...]) -> int:
        return sum(count({name: s}) for name, s in unit.items() if any(n in name for n in names))

    blocks = sum(blocks_of_stage(model, plan, stage) for stage in held)
    if not plan.sequence_parallel:
        return blocks * matching(model.block_shapes(), ("q_norm", "k_norm"))
    shared = blocks * matching(model.block_shapes(), ("norm", "out.bias", "down.bias"))
    if 0 in held and model.positions == "learned":
        shared += plan.seq * model.hidden
    if stage_count(plan.pp, plan.schedule) - 1 in held:
        shared += matching(model.head_shapes(), ("norm",))
    return shared


def flat_elements(units: Iterable[Unit], ranks: int) -> int:
    """Elements of ZeRO-1 and 2's flat buffers: each unit padded to a multiple of `ranks`."""
    return sum(_padded(count(unit), ranks) for unit in units)


def row_elements(units: Iterable[Unit], ranks: int) -> int:
    """Elements that ZeRO-3 gathers: `fully_shard` pads each tensor's first dimension to ranks."""
    return sum(
        count({name: (_padded(first, ranks), *rest)})
        for unit in units
        for name, (first, *rest) in unit.items()
    )


def row_share(units: Iterable[Unit], ranks: int, rank: int) -> int:
    """Elements that `fully_shard` leaves on a rank: rows are dealt out like `torch.chunk` does."""
    total = 0
    for unit in units:
        for first, *rest in unit.values():
            chunk = -(-first // ranks)
            rows = max(0, min(chunk, first - rank * chunk))
            total += rows * math.prod(rest)
    return total


def _padded(elements: int, ranks: int) -> int:
    return -(-elements // ranks) * ranks
