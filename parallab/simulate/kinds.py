"""Which ranks of a plan differ: each of the others is to the byte as one of these."""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable, Iterator

from parallab.plan import Plan
from parallab.predict.parts import EMBEDDING, blocks_of_stage, held_stages, held_units, sliced
from parallab.spec import Model, count
from parallab.stages import stage_count


def kinds_of_ranks(model: Model, plan: Plan) -> dict[int, int]:
    """The first rank of each kind -> how many ranks are of that kind.

    Ranks are alike if they hold tensors of the same shapes, work through them in the same order
    and send as many bytes.

    >>> kinds_of_ranks(Model("mini"), Plan("3d", dp=32, pp=2, tp=4))
    {0: 128, 128: 128}
    >>> kinds_of_ranks(Model("nano"), Plan("zero3", 3))  # 64 rows are 22 + 22 + 20
    {0: 2, 2: 1}
    """
    kinds = {}
    for pp, pp_ranks in _alike(_on_pipeline_axis(model, plan)):
        for tp, tp_ranks in _alike(_on_tensor_axis(model, plan, pp)):
            for dp, dp_ranks in _alike(_on_data_axis(model, plan, pp, tp)):
                kinds[(pp * plan.dp + dp) * plan.tp + tp] = pp_ranks * tp_ranks * dp_ranks
    return dict(sorted(kinds.items()))


def _alike(places: Iterable[Hashable]) -> Iterator[tuple[int, int]]:
    """The first place of each kind on an axis, and how many there are."""
    first: dict[Hashable, int] = {}
    counts: dict[int, int] = {}
    for place, kind in enumerate(places):
        stands = first.setdefault(kind, place)
        counts[stands] = counts.get(stands, 0) + 1
    yield from counts.items()


def _on_pipeline_axis(model: Model, plan: Plan) -> Iterator[Hashable]:
    """The blocks and ends of each place's stages, and its turn in the schedule."""
    last = stage_count(plan.pp, plan.schedule) - 1
    for pp in range(plan.pp):
        held = held_stages(plan, pp)
        match plan.schedule:
            case "gpipe" | "loopedbfs":  # all forwards, then all backwards, on every rank
                turn = 0
            case "1f1b":  # how many micro-batches are under way at once
                turn = min(plan.micro_batches, plan.pp - pp)
            case _:
                turn = pp
        yield turn, 0 in held, last in held, *(blocks_of_stage(model, plan, s) for s in held)


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
            rows = sorted({shape[0] for unit in units for shape in unit.values()})
            return [_shares(rows, plan.dp, dp) for dp in places]
        case "zero1" | "zero2" if plan.clip is not None or (model.tied and plan.pp > 1):
            # These look at what is gradient in a shard, and not at its padding.
            sizes = sorted(set(map(count, units)))
            return [_shares(sizes, plan.dp, dp) for dp in places]
        case "zero1-torch":
            tensors = [math.prod(shape) for unit in units for shape in unit.values()]
            dealt = _dealt_out(tensors, plan.dp)
            # Of the broadcasts a rank passes on all but that of the next.
            return [(dealt[dp], sum(dealt[(dp + 1) % plan.dp])) for dp in places]
    return [None for _ in places]


def _shares(sizes: list[int], ranks: int, rank: int) -> tuple[int, ...]:
    """A rank's part of each size, dealt out as `torch.chunk` does."""
    chunks = [-(-size // ranks) for size in sizes]
    return tuple(
        max(0, min(chunk, size - rank * chunk)) for size, chunk in zip(sizes, chunks, strict=True)
    )


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
