"""To whom a rank sends, by closed forms: the wire bytes of each collective on ideal rings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from parallab.plan import Plan
from parallab.predict.communication import Collective, receivers, shown_axis, wire_bytes
from parallab.predict.parts import held_stages
from parallab.report import Communication
from parallab.stages import rank_of_stage, stage_count

Coords = Mapping[str, int]


def rows_and_traffic(
    plan: Plan, rank: int, collectives: Sequence[Collective]
) -> tuple[list[Communication], dict[int, int]]:
    """A rank's collectives as a Report holds them, and receiving rank -> bytes."""
    coords = plan.coordinates(rank)
    rows, traffic = [], defaultdict[int, int](int)
    for one in collectives:
        wire = _wire_bytes(plan, coords, one)
        shown = one._replace(axis=shown_axis(plan, one.axis))
        rows.append(Communication(*shown, wire_bytes=wire))
        for receiver, size in _to(plan, rank, coords, one, wire):
            traffic[receiver] += size
    return rows, dict(sorted(traffic.items()))


def _wire_bytes(plan: Plan, coords: Coords, one: Collective) -> int:
    size, position = _group(plan, coords, one)
    if one.op == "broadcast" and plan.data == "zero1-torch":
        # Each rank is the root of its own tensors' broadcast, and the end of one other's chain.
        return one.payload_bytes * (size - 1) // size
    return wire_bytes(one.op, one.payload_bytes, size, position)


def _group(plan: Plan, coords: Coords, one: Collective) -> tuple[int, int]:
    """The group's size, and the rank's position in it."""
    if one.axis == "world":
        return plan.devices, 0
    if one.axis == "pp":
        return 2, 0
    return getattr(plan, one.axis), coords[one.axis]


def _to(
    plan: Plan, rank: int, coords: Coords, one: Collective, wire: int
) -> Iterator[tuple[int, int]]:
    if one.axis == "pp":
        yield from _along_pipeline(plan, rank, coords["pp"], one, wire)
        return
    size, position = _group(plan, coords, one)
    for distance, sent in receivers(one.op, wire, size, position).items():
        if one.axis == "world":
            yield (rank + distance) % size, sent
        else:
            there = (coords[one.axis] + distance) % size
            stride = plan.tp if one.axis == "dp" else 1
            yield rank + (there - coords[one.axis]) * stride, sent


def _along_pipeline(
    plan: Plan, rank: int, pp: int, one: Collective, wire: int
) -> Iterator[tuple[int, int]]:
    """Activations and gradients to neighbours; a tied gradient between the two ends."""
    stages, stride = stage_count(plan.pp, plan.schedule), plan.dp * plan.tp
    if one.op == "all_reduce":
        other = 0 if pp else rank_of_stage(plan.schedule, stages - 1, plan.pp)
        yield rank + (other - pp) * stride, wire
        return
    if one.op != "send":
        return
    there = [
        rank_of_stage(plan.schedule, other, plan.pp)
        for stage in held_stages(plan, pp)
        for other in (stage - 1, stage + 1)
        if 0 <= other < stages
    ]
    neighbours = [other for other in there if other != pp]
    for other in neighbours:
        yield rank + (other - pp) * stride, wire // len(neighbours)
