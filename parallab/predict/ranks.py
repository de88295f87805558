"""Which ranks of a plan differ, so that one of each kind stands for all."""

from __future__ import annotations

from parallab.plan import Plan
from parallab.predict.parts import EMBEDDING, alike, counted, held_units, sliced
from parallab.spec import Model

ALL_RANKS_UP_TO = 64


def distinct_ranks(model: Model, plan: Plan) -> dict[int, int]:
    """One rank of each kind -> how many ranks it stands for.

    Pipeline ranks hold other stages and other numbers of micro-batches. The last tensor-parallel
    rank has fewer rows of the vocabulary where that does not divide. Of the data axis rank 0 is
    another kind in classic DP. Where ZeRO deals out rows or tensors unevenly every rank is one; of
    more than 64 devices only the first and the last are looked at, and the first stands for what
    lies between.

    >>> distinct_ranks(Model("mini"), Plan("3d", dp=32, pp=2, tp=4))
    {0: 128, 128: 128}
    """
    found: dict[int, int] = {}
    for pp in range(plan.pp):
        for tp, tp_ranks in _tensor_kinds(model, plan):
            for dp, dp_ranks in _data_kinds(model, plan, pp, tp):
                found[_rank(plan, dp, pp, tp)] = dp_ranks * tp_ranks
    return dict(sorted(found.items()))


def kind_of(model: Model, plan: Plan, rank: int) -> int:
    """The rank that stands for all of this one's kind: one of `distinct_ranks`."""
    coords = plan.coordinates(rank)
    pp = coords["pp"]
    tp = max(first for first, _ in _tensor_kinds(model, plan) if first <= coords["tp"])
    dp = max(first for first, _ in _data_kinds(model, plan, pp, tp) if first <= coords["dp"])
    return _rank(plan, dp, pp, tp)


def same_parts(model: Model, plan: Plan, rank: int) -> int:
    """The first rank that holds as much as this one; how full it is may differ."""
    coords = plan.coordinates(rank)
    if plan.data == "zero2":  # where what is held depends on how many passes are over
        return rank
    pp = alike(model, plan.pp, plan.schedule)[coords["pp"]]
    return _rank(plan, coords["dp"], pp, coords["tp"])


def shown_ranks(model: Model, plan: Plan) -> dict[int, int]:
    """The ranks that a predicted Report lists -> how many ranks each stands for.

    All of them up to 64, otherwise one of each kind.
    """
    if plan.devices <= ALL_RANKS_UP_TO:
        return dict.fromkeys(range(plan.devices), 1)
    return distinct_ranks(model, plan)


def _rank(plan: Plan, dp: int, pp: int, tp: int) -> int:
    """The inverse of `Plan.coordinates`."""
    return (pp * plan.dp + dp) * plan.tp + tp


def _tensor_kinds(model: Model, plan: Plan) -> list[tuple[int, int]]:
    last = plan.tp - 1
    shape = (model.vocab, model.hidden)
    if sliced(EMBEDDING, shape, plan.tp, 0) == sliced(EMBEDDING, shape, plan.tp, last):
        return [(0, plan.tp)]
    return [(0, last), (last, 1)]


def _data_kinds(model: Model, plan: Plan, pp: int, tp: int) -> list[tuple[int, int]]:
    last = plan.dp - 1
    if plan.dp == 1:
        return [(0, 1)]
    if plan.data == "dp":
        return [(0, 1), (1, last)]
    if plan.data == "zero1-torch" or (plan.data == "zero3" and _uneven(model, plan, pp, tp)):
        if plan.devices <= ALL_RANKS_UP_TO:
            return [(dp, 1) for dp in range(plan.dp)]
        return [(0, last), (last, 1)]
    return [(0, plan.dp)]


def _uneven(model: Model, plan: Plan, pp: int, tp: int) -> bool:
    """Whether a tensor's rows do not divide by the data-parallel degree."""
    units = held_units(model, plan, pp, tp)
    return any(shape[0] % plan.dp for unit, _ in counted(units) for shape in unit.values())
