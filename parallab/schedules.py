"""Pipeline schedules: in which order each rank works on its stages and micro-batches.

A schedule is a pure function from counts to lists of passes, in the spirit of torchgpipe
(arXiv:2004.09910). When each pass runs follows from its rank's order and from what it waits for:
`planned`.

    looped  gpipe, 1f1b         one stage a rank
            loopedbfs           two stages a rank; all micro-batches through one, then the other
            interleaved, zb     two stages a rank; a round of micro-batches through each in turn
    V       zbv, dualpipev      two stages a rank; micro-batches go down the ranks and up again

A rank of the first family runs some forwards ahead, then forward and backward in turn, then the
other backwards: `_looped`. A rank of the second goes through phases, each a pattern of passes and
how often it repeats: `_zbv`, `_dualpipev`.

torch.distributed.pipelining runs these orders; the tests hold them to it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, zip_longest
from typing import Literal, NamedTuple

from parallab.stages import SCHEDULES, stage_count, stage_indices

Kind = Literal["forward", "backward", "input", "weight"]


class Pass(NamedTuple):
    """One stage's work on one micro-batch.

    "backward" is the whole backward pass. Zero bubble (arXiv:2401.10241) halves it: "input" is the
    gradient that the stage before waits for, "weight" those of the weights, which can wait.
    """

    kind: Kind
    stage: int
    micro_batch: int


class Slot(NamedTuple):
    """A pass and when it runs, in seconds since the first pass began."""

    work: Pass
    start: float
    end: float


Orders = Sequence[Sequence[Pass]]
Seconds = Callable[[Pass], float] | Mapping[Kind, float]


def orders(schedule: str, ranks: int, micro_batches: int) -> list[list[Pass]]:
    """The passes of each pipeline rank, in the order in which it works.

    Args:
        schedule: a name of `stages.SCHEDULES`.
        ranks: at least two.
        micro_batches: a number that `Plan` accepts for this schedule.
    """
    assert ranks > 1
    assert schedule in SCHEDULES
    stages = stage_count(ranks, schedule)
    return [
        _order(schedule, stage_indices(schedule, rank, ranks, stages), rank, ranks, micro_batches)
        for rank in range(ranks)
    ]


def _order(schedule: str, held: list[int], rank: int, ranks: int, m: int) -> list[Pass]:
    match schedule:
        case "zbv":
            return _zbv(held, rank, ranks, m)
        case "dualpipev":
            return _dualpipev(held, rank, ranks, m)
        case "zb":
            return _with_weights(_looped(schedule, held, rank, ranks, m), lag=rank)
    return _looped(schedule, held, rank, ranks, m)


def _looped(schedule: str, held: list[int], rank: int, ranks: int, m: int) -> list[Pass]:
    """Forwards ahead, then forward and backward in turn, then the other backwards.

    How many forwards run ahead is all that tells most of these schedules apart:

    - gpipe (arXiv:1811.06965), loopedbfs (arXiv:2211.05953): all. BFS goes back the way it came.
    - 1f1b (PipeDream-flush, arXiv:2104.04473, section 2.2.1): one for each rank that follows.
    - interleaved (section 2.2.2): a round on each stage but the last, and two for each rank that
      follows.
    - zb (ZB-H1 of arXiv:2401.10241, interleaved): as before, but one for each rank that follows,
      since half a backward pass is all that a rank waits for.

    Args:
        held: the rank's stages.
        m: micro-batches.
    """
    rounds = max(1, m // ranks) if schedule in ("interleaved", "zb") else 1
    assert m % rounds == 0, f"{m} micro-batches do not divide into {rounds} rounds"
    together = m // rounds
    there = _in_turn(held, m, together)
    back = there[::-1] if schedule == "loopedbfs" else _in_turn(held[::-1], m, together)

    hops, round_ahead = ranks - 1 - rank, (len(held) - 1) * together
    ahead = {"1f1b": hops, "interleaved": round_ahead + 2 * hops, "zb": round_ahead + hops}
    forwards = [Pass("forward", *at) for at in there]
    backwards = [Pass("input" if schedule == "zb" else "backward", *at) for at in back]
    first = ahead.get(schedule, len(forwards))
    order = forwards[:first]
    for forward, backward in zip_longest(forwards[first:], backwards):
        order += [forward, backward] if forward else [backward]
    return order


def _in_turn(stages: list[int], m: int, together: int) -> list[tuple[int, int]]:
    """(stage, micro-batch) of rounds that take so many micro-batches through each stage in turn."""
    return [
        (stage, micro_batch)
        for start in range(0, m, together)
        for stage in stages
        for micro_batch in range(start, start + together)
    ]


def _with_weights(order: list[Pass], lag: int) -> list[Pass]:
    """The order with each weight pass `lag` input passes behind its own, or else at the end."""
    full: list[Pass] = []
    due: list[Pass] = []
    for work in order:
        full.append(work)
        if work.kind == "input":
            due.append(Pass("weight", work.stage, work.micro_batch))
            if len(due) > lag:
                full.append(due.pop(0))
    return full + due


def _zbv(held: list[int], rank: int, ranks: int, m: int) -> list[Pass]:
    """ZB-V (arXiv:2401.10241, section 6; the V-ZB of arXiv:2405.15362).

    A rank never waits between its first pass and its last, if forward, input and weight passes
    take equally long and 2 * ranks - 1 micro-batches fill the pipeline. Fewer leave places empty.
    """
    hops, full = ranks - 1 - rank, max(m, 2 * ranks - 1)
    order = _phases(
        held,
        (2 * hops + 1, "F0"),
        (rank, "F1 F0"),
        (hops + 1, "F1 I1 W1"),
        (full - ranks - hops, "F0 I0 W0 F1 I1 W1"),
        (hops, "I0 W0 F1 I1 W1"),
        (rank, "I0 I1"),
        (hops + 1, "I0 W0"),
        (rank, "W1"),
        (rank, "W0"),
    )
    return [work for work in order if work.micro_batch < m]


def _dualpipev(held: list[int], rank: int, ranks: int, m: int) -> list[Pass]:
    """DualPipeV: the DualPipe of DeepSeek-V3 (arXiv:2412.19437) cut in half (Qi et al., 2025).

    Only the passes at either end are halved. In between, DeepSeek hides the communication of F0
    behind B1, and of F1 behind B0, within one kernel; torch runs the two one after the other.
    """
    assert m >= 2 * ranks
    hops = ranks - 1 - rank
    pairs, odd = divmod(rank + 1, 2)
    return _phases(
        held,
        (2 * hops, "F0"),
        (rank + 1, "F0 F1"),
        (hops, "I1 W1 F1"),
        (m - ranks - hops, "F0 B1 F1 B0"),
        (hops, "B1 F1 B0"),
        (pairs, "B1 B0"),
        (odd, "B1 I0"),
        (pairs, "I1 I0"),
        (hops, "W I0"),
        (rank + 1, "W"),
    )


_KINDS: dict[str, Kind] = {"F": "forward", "B": "backward", "I": "input"}


def _phases(held: list[int], *phases: tuple[int, str]) -> list[Pass]:
    """Patterns and how often each repeats, as passes; each takes the next micro-batch in line.

    0 is the stage on the way down, 1 the one on the way up. W0 and W1 are the oldest weight pass
    due for that stage, W the oldest of either.
    """
    order: list[Pass] = []
    due: list[Pass] = []
    done: Counter[tuple[bool, int]] = Counter()
    for repeats, pattern in phases:
        for name in pattern.split() * repeats:
            letter, stages = name[0], [held[int(i)] for i in name[1:]] or held
            if letter == "W":
                oldest = next(work for work in due if work.stage in stages)
                due.remove(oldest)
                order.append(oldest)
                continue
            line = (letter == "F", stages[0])
            order.append(Pass(_KINDS[letter], stages[0], done[line]))
            if letter == "I":
                due.append(Pass("weight", stages[0], done[line]))
            done[line] += 1
    assert not due
    return order


def planned(orders: Orders, seconds: Seconds) -> list[list[Slot]]:
    """When each pass runs: as early as its rank's order and what it needs allow.

    A forward needs the forward of the stage before; a backward or input pass needs the same of the
    stage after, and its own forward; a weight pass needs its own input pass. Communication takes
    no time.

    Args:
        orders: the passes of each rank.
        seconds: what a pass takes, or what passes of each kind take.

    Returns:
        Each rank's passes in its order. Orders that cannot proceed are an AssertionError.
    """
    cost = seconds if callable(seconds) else lambda work: seconds[work.kind]
    last = max(work.stage for order in orders for work in order)
    left = [deque(order) for order in orders]
    slots: list[list[Slot]] = [[] for _ in orders]
    ends: dict[Pass, float] = {}
    waiting: dict[Pass, int] = {}  # what a rank waits for -> that rank
    free = list(range(len(orders)))
    while free:
        rank = free.pop()
        clock = slots[rank][-1].end if slots[rank] else 0.0
        while left[rank]:
            work = left[rank][0]
            needs = _needs(work, last)
            missing = [need for need in needs if need not in ends]
            if missing:
                waiting[missing[0]] = rank
                break
            left[rank].popleft()
            start = max([clock, *(ends[need] for need in needs)])
            clock = start + cost(work)
            slots[rank].append(Slot(work, start, clock))
            gives = _gives(work)
            ends[gives] = clock
            if gives in waiting:
                free.append(waiting.pop(gives))
    assert not any(left), f"ranks wait for one another at {[queue[0] for queue in left if queue]}"
    return slots


def _needs(work: Pass, last: int) -> list[Pass]:
    """What must be done before, given the last stage."""
    kind, stage, micro_batch = work
    if kind == "weight":
        return [Pass("input", stage, micro_batch)]
    if kind == "forward":
        return [Pass("forward", stage - 1, micro_batch)] if stage else []
    forward = Pass("forward", stage, micro_batch)
    return [forward, Pass("input", stage + 1, micro_batch)] if stage < last else [forward]


def _gives(work: Pass) -> Pass:
    """What others wait for: a whole backward pass includes the gradient of the input."""
    return Pass("input", work.stage, work.micro_batch) if work.kind == "backward" else work


_HOLDS: dict[Kind, int] = {"forward": 1, "backward": -1, "input": 0, "weight": -1}


def in_flight(orders: Orders) -> list[int]:
    """The most forwards of each rank whose activations are held at once.

    They are held until the backward pass, or until the weight pass where it is halved. Ranks of
    two stages count each apart: theirs are half as large.
    """
    return [max(accumulate(_HOLDS[work.kind] for work in order)) for order in orders]
