"""Bytes that a rank sends, by closed forms.

Payload is the full tensor of a collective: the output of an all-gather, the input of a
reduce-scatter, the tensor of an all-reduce. Wire bytes are what one rank sends if the collective
runs on an ideal ring; libraries may send more (Gloo's reduce-scatter is an all-reduce) or, with
trees, in another pattern.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

from parallab.models.spec import Model, count
from parallab.plan import Plan
from parallab.predict.buckets import ddp_buckets
from parallab.predict.occupancy import gathers
from parallab.predict.padding import elements, flat_elements, row_elements, row_share
from parallab.predict.parts import (
    EMBEDDING,
    Unit,
    blocks_of_stage,
    held_stages,
    held_units,
    sliced,
)
from parallab.stages import rank_of_stage, stage_count

__all__ = [
    "Collective", "collectives", "flat_elements", "payload_per_step", "receivers", "row_elements",
    "row_share", "shown_axis", "wire_bytes",
]  # fmt: skip

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


class Collective(NamedTuple):
    """All operations of one kind, axis and phase in a warm step of one rank."""

    op: str
    axis: str
    phase: str
    times: int
    payload_bytes: int


def payload_per_step(model: Model, plan: Plan, coords: Mapping[str, int] = ORIGIN) -> Payload:
    """Payload bytes of one warm step of the rank at `coords`: (operation, axis) -> bytes."""
    payload: Payload = defaultdict(int)
    for row in collectives(model, plan, coords):
        payload[row.op, shown_axis(plan, row.axis)] += row.payload_bytes
    return dict(payload)


def shown_axis(plan: Plan, axis: str) -> str:
    """An axis as the meters name it: one that spans the whole world stands for that."""
    spans = [name for name in ORIGIN if getattr(plan, name) == plan.devices]
    return spans[0] if axis == "world" and spans else axis


def collectives(model: Model, plan: Plan, coords: Mapping[str, int] = ORIGIN) -> list[Collective]:
    """What the rank at `coords` takes part in during one warm step, by operation, axis, phase.

    What lies outside of passes is in the phase "other", as the meter records it.
    """
    rows: list[Collective] = []
    for part in (_data_axis, _pipeline_axis, _tensor_axis):
        rows += part(model, plan, coords)
    if plan.clip is not None and plan.devices > 1:
        # The square of the global norm.
        rows.append(Collective("all_reduce", "world", "optimizer", 1, 4))
    return [row for row in rows if row.payload_bytes]


def _data_axis(model: Model, plan: Plan, coords: Mapping[str, int]) -> Iterator[Collective]:
    """With P bytes of weights on a rank (padding included where shards need it): DDP all-reduces P
    (arXiv:2006.15704, section 3); ZeRO-1 and 2 reduce-scatter P and all-gather P; ZeRO-3
    all-gathers P twice and reduce-scatters P (arXiv:1910.02054, section 7). ZeRO-2 and 3 reduce
    every micro-batch, the others once a step.
    """
    if plan.dp == 1:
        return
    units = held_units(model, plan, coords["pp"], coords["tp"])
    e, n, m, number = plan.element_bytes, plan.dp, plan.micro_batches, len(units)
    weights = elements(units) * e
    match plan.data:
        case "dp":
            yield from _classic(model, plan, weights)
        case "replicate" if plan.pp > 1:
            yield Collective("all_reduce", "dp", "backward", number, weights)
        case "replicate":
            yield Collective("all_reduce", "dp", "backward", ddp_buckets(units, e), weights)
        case "zero1-torch":
            yield Collective("all_reduce", "dp", "backward", ddp_buckets(units, e), weights)
            tensors = sum(map(len, units))
            yield Collective("broadcast", "dp", "optimizer", min(n, tensors), weights)
        case "zero1" | "zero2":
            times = m if plan.data == "zero2" else 1
            flat = flat_elements(units, n) * e
            yield Collective("reduce_scatter", "dp", "backward", times * number, times * flat)
            yield Collective("all_gather", "dp", "optimizer", number, flat)
        case "zero3":
            yield from _fully_sharded(model, plan, coords["pp"], row_elements(units, n) * e)


def _classic(model: Model, plan: Plan, weights: int) -> Iterator[Collective]:
    """Ids and logits of the whole batch, and all weights there and back for each micro-batch."""
    ids = plan.batch * plan.seq * 8
    logits = plan.batch * plan.seq * model.vocab * plan.element_bytes
    m = plan.micro_batches
    yield Collective("scatter", "dp", "forward", m, ids)
    yield Collective("broadcast", "dp", "forward", m, m * weights)
    yield Collective("gather", "dp", "forward", m, logits)
    yield Collective("scatter", "dp", "backward", m, logits)
    yield Collective("reduce", "dp", "backward", m, m * weights)


def _fully_sharded(model: Model, plan: Plan, pp: int, rows: int) -> Iterator[Collective]:
    """Every block is gathered and reduced alone, a stage's embedding and head together.

    In a pipeline ZeRO-3 reduces once, and keeps a stage's weights from a backward pass until the
    next forward pass has used them: it gathers for a forward pass unless a backward pass came
    before, and for a backward pass that follows a forward pass. In whatever order the m
    micro-batches come, that is m + 1 times.

    Args:
        rows: bytes of the rank's weights, padded.
    """
    held, m = held_stages(plan, pp), plan.micro_batches
    last = stage_count(plan.pp, plan.schedule) - 1
    units = sum(blocks_of_stage(model, plan, stage) + (stage in (0, last)) for stage in held)
    if plan.pp == 1:
        yield Collective("all_gather", "dp", "forward", m * units, m * rows)
        yield Collective("all_gather", "dp", "backward", m * units, m * rows)
        yield Collective("reduce_scatter", "dp", "backward", m * units, m * rows)
        return
    forward = gathers(plan.schedule, plan.pp, m)[pp]
    for phase, times in (("forward", forward), ("backward", m + 1 - forward)):
        yield Collective("all_gather", "dp", phase, times * units, times * rows)
    yield Collective("reduce_scatter", "dp", "other", units, rows)


def _pipeline_axis(model: Model, plan: Plan, coords: Mapping[str, int]) -> Iterator[Collective]:
    """Every boundary between stages on different ranks passes each micro-batch's activations on and
    their gradients back (arXiv:1811.06965, section 2.3): batch x seq x hidden elements a step each
    way. A tied embedding adds an all-reduce of its gradient between first and last stage
    (arXiv:2104.04473, section 3.2), of the shard where ZeRO has left one.
    """
    if plan.pp == 1:
        return
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
    for op in ("send", "recv"):
        yield Collective(op, "pp", "other", borders * plan.micro_batches, borders * boundary)
    ends = [where(0), where(stages - 1)]
    if model.tied and coords["pp"] in ends and ends[0] != ends[1]:
        copy = {EMBEDDING: sliced(EMBEDDING, (model.vocab, model.hidden), plan.tp, coords["tp"])}
        shared = _held_share(copy, plan, coords["dp"]) * plan.element_bytes
        yield Collective("all_reduce", "pp", "backward", 1, shared)


def _held_share(unit: Unit, plan: Plan, rank: int) -> int:
    """Elements of a unit's gradient that a data-parallel rank keeps."""
    if plan.data in ("zero1", "zero2"):
        return flat_elements([unit], plan.dp) // plan.dp
    if plan.data == "zero3":
        return row_share([unit], plan.dp, rank)
    return count(unit)


def _tensor_axis(model: Model, plan: Plan, coords: Mapping[str, int]) -> Iterator[Collective]:
    """Four all-reduces of the activations a layer, two forward and two backward
    (arXiv:1909.08053, section 3), one more where recomputation repeats attention's; one for the
    embedding forward, one for the head backward; and three numbers a token for the loss, in two
    all-reduces. With sequence parallelism each is an all-gather and a reduce-scatter
    (arXiv:2205.05198, section 4.2.2), and the weights that every rank holds are all-reduced in
    backward.
    """
    if plan.tp == 1:
        return
    held, m = held_stages(plan, coords["pp"]), plan.micro_batches
    blocks = sum(blocks_of_stage(model, plan, stage) for stage in held)
    embedding = 0 in held
    head = stage_count(plan.pp, plan.schedule) - 1 in held
    again = blocks if plan.recompute == "full" else 0
    tokens = plan.rank_batch * plan.seq
    activations = tokens * model.hidden * plan.element_bytes
    rows = partial(_rows, m=m, each=activations)
    if plan.sequence_parallel:
        yield rows("all_gather", "forward", 2 * blocks + head)
        yield rows("all_gather", "backward", 2 * blocks + embedding + 2 * again)
        yield rows("reduce_scatter", "forward", 2 * blocks + embedding)
        yield rows("reduce_scatter", "backward", 2 * blocks + head + again)
        forward = backward = 0
    else:
        forward, backward = 2 * blocks + embedding, 2 * blocks + head + again
    weights, shared = _shared_weights(model, plan, blocks, embedding, head)
    in_loss, loss = 2 * head, 3 * 4 * tokens * head
    if plan.pp > 1:  # whose schedule computes the loss between passes
        yield Collective("all_reduce", "tp", "other", m * in_loss, loss)
        in_loss = loss = 0
    yield Collective(
        "all_reduce", "tp", "forward", m * (forward + in_loss), activations * forward + loss
    )
    yield Collective(
        "all_reduce", "tp", "backward",
        m * (backward + weights), activations * backward + m * shared * plan.element_bytes,
    )  # fmt: skip


def _rows(op: str, phase: str, times: int, *, m: int, each: int) -> Collective:
    """So many operations in every one of m micro-batches, of `each` bytes in all of them."""
    return Collective(op, "tp", phase, m * times, times * each)


def _shared_weights(
    model: Model, plan: Plan, blocks: int, embedding: bool, head: bool
) -> tuple[int, int]:
    """Weights that each tensor-parallel rank uses on its own part of the data.

    Returns:
        All-reduces of their gradients, a norm's bias with its weight; elements of them all.
    """
    names = ["q_norm", "k_norm"]
    if plan.sequence_parallel:
        names += ["attention_norm", "mlp_norm", "out.bias", "down.bias"]
    block = model.block_shapes()

    def matching(name: str) -> int:
        return count({full: shape for full, shape in block.items() if name in full})

    sizes = [size for size in map(matching, names) if size]
    number, elements = blocks * len(sizes), blocks * sum(sizes)
    if plan.sequence_parallel and embedding and model.positions == "learned":
        number, elements = number + 1, elements + plan.seq * model.hidden
    if plan.sequence_parallel and head:
        norm = {full: shape for full, shape in model.head_shapes().items() if "norm" in full}
        number, elements = number + 1, elements + count(norm)
    return number, elements
