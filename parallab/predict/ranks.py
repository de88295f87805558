"""Which ranks of a plan differ: each of the others is to the byte as one of these."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Hashable, Iterable, Iterator

from parallab.models.spec import Model, count
from parallab.plan import Plan
from parallab.predict.parts import EMBEDDING, alike, held_stages, held_units, sliced
from parallab.stages import stage_count

ALL_RANKS_UP_TO = 64


def kinds_of_ranks(model: Model, plan: Plan) -> dict[int, int]:
    """The first rank of each kind -> how many ranks are of that kind.

    Ranks are alike if they hold tensors of the same shapes, work through them in the same order
    and send as many bytes.

    >>> kinds_of_ranks(Model("mini"), Plan("3d", dp=32, pp=2, tp=4))
    {0: 128, 128: 128}
    >>> kinds_of_ranks(Model("nano"), Plan("zero3", 3))  # 64 rows are 22 + 22 + 20
    {0: 2, 2: 1}
    """
    return {kind: math.prod(map(len, places)) for kind, places in sorted(_kinds(model, plan))}


def kind_of_each(model: Model, plan: Plan) -> dict[int, int]:
    """Every rank -> the first of its kind."""
    return {
        _rank(plan, *place): kind
        for kind, places in _kinds(model, plan)
        for place in itertools.product(*places)
    }


def same_parts(model: Model, plan: Plan, rank: int) -> int:
    """The first rank that holds as much as this one; how full it is may differ."""
    coords = plan.coordinates(rank)
    if plan.data == "zero2":  # where what is held depends on how many passes are over
        return rank
    pp = alike(model, plan.pp, plan.schedule)[coords["pp"]]
    return _rank(plan, pp, coords["tp"], coords["dp"])


def _rank(plan: Plan, pp: int, tp: int, dp: int) -> int:
    """The inverse of `Plan.coordinates`."""
    return (pp * plan.dp + dp) * plan.tp + tp


def _kinds(model: Model, plan: Plan) -> Iterator[tuple[int, tuple[list[int], ...]]]:
    """The first rank of each kind, and the places of all of them on pp, tp and dp."""
    for pps in _alike(_on_pipeline_axis(model, plan)):
        for tps in _alike(_on_tensor_axis(model, plan, pps[0])):
            for dps in _alike(_on_data_axis(model, plan, pps[0], tps[0])):
                yield _rank(plan, pps[0], tps[0], dps[0]), (pps, tps, dps)


def _alike(places: Iterable[Hashable]) -> Iterable[list[int]]:
    """The places of each kind on an axis."""
    kinds: dict[Hashable, list[int]] = {}
    for place, kind in enumerate(places):
        kinds.setdefault(kind, []).append(place)
    return kinds.values()


def _on_pipeline_axis(model: Model, plan: Plan) -> Iterator[Hashable]:
    """What each place's stages hold, and its turn in the schedule."""
    for pp, holds_as in enumerate(alike(model, plan.pp, plan.schedule)):
        match plan.schedule:
            case "gpipe" | "loopedbfs":  # all forwards, then all backwards, on every rank
                turn = 0
            case "1f1b":  # how many micro-batches are under way at once
                turn = min(plan.micro_batches, plan.pp - pp)
            case _:
                turn = pp
        yield turn, holds_as


def _on_tensor_axis(model: Model, plan: Plan, pp: int) -> Iterator[Hashable]:
    """Rows of the vocabulary, where the stage has any: fewer on the last if they do not divide."""
    held = held_stages(plan, pp)
    ends = 0 in held or stage_count(plan.pp, plan.schedule) - 1 in held
    for tp in range(plan.tp):
        yield sliced(EMBEDDING, (model.vocab, model.hidden), plan.tp, tp) if ends else None


def _on_data_axis(model: Model, plan: Plan, pp: int, tp: int) -> Iterable[Hashable]:
    """What each place holds and sends of the stage's tensors."""
    places = range(plan.dp)
    units = held_units(model, plan, pp, tp)
    match plan.data:
        case "dp":  # the root, and the last, which passes no broadcast on
            return [(dp == 0, dp == plan.dp - 1) for dp in places]
        case "zero3":
            rows = {shape[0] for unit in units for shape in unit.values()}
            return zip(*(_chunks(size, plan.dp) for size in rows), strict=True)
        case "zero1" | "zero2" if plan.clip is not None or (model.tied and plan.pp > 1):
            # These look at what is gradient in a shard, and not at its padding.
            return zip(*(_chunks(size, plan.dp) for size in set(map(count, units))), strict=True)
        case "zero1-torch":
            tensors = [math.prod(shape) for unit in units for shape in unit.values()]
            dealt = _dealt_out(tensors, plan.dp)
            # Of the broadcasts a rank passes on all but that of the next.
            return [(dealt[dp], sum(dealt[(dp + 1) % plan.dp])) for dp in places]
    return [None for _ in places]


def _chunks(size: int, ranks: int) -> list[int]:
    """Each rank's part of a size, dealt out as `torch.chunk` does."""
    chunk = -(-size // ranks)
    full, rest = divmod(size, chunk)
    return ([chunk] * full + [rest] + [0] * ranks)[:ranks]


def _dealt_out(tensors: list[int], ranks: int) -> list[tuple[int, ...]]:
    """The sizes of each rank's tensors, as `ZeroRedundancyOptimizer` deals them out.

    The largest first, each to the first of the ranks that have least.
    """
    dealt: list[tuple[int, ...]] = [()] * ranks
    least = [(0, rank) for rank in range(ranks)]
    for size in sorted(tensors, reverse=True):
        held, rank = heapq.heappop(least)
        dealt[rank] += (size,)
        heapq.heappush(least, (held + size, rank))
    return dealt
