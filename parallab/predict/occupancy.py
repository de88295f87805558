"""How full a pipeline rank is while it works: the micro-batches that wait during each pass."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from operator import le
from typing import NamedTuple

from parallab.schedules import Kind, Pass, orders
from parallab.stages import (
    V_SHAPED,
    ZERO_BUBBLE,
    stage_count,
    stage_indices,
    stages_per_rank,
)

Counts = tuple[int, ...]
ALL_FORWARDS_FIRST = ("gpipe", "loopedbfs")


class Situation(NamedTuple):
    """A kind of pass, and what a rank holds meanwhile.

    Attributes:
        kind: forward, backward, input or weight.
        stage: of the rank's stages, counted from 0.
        later: for each stage, whether a backward or weight pass has been.
        done: whether all of them have.
        counts: for each stage, in this order: other micro-batches between forward and backward (or
            input) pass; between input and weight pass; all whose forward pass is over; all whose
            backward or input pass is over.
    """

    kind: Kind
    stage: int
    later: tuple[bool, ...]
    done: tuple[bool, ...]
    counts: Counts

    @property
    def waiting(self) -> Counts:
        """Between forward and backward pass."""
        return self.counts[: len(self.later)]

    @property
    def halves(self) -> Counts:
        """Between input and weight pass."""
        return self.counts[len(self.later) : 2 * len(self.later)]

    @property
    def forwards(self) -> Counts:
        """Whose forward pass is over."""
        return self.counts[2 * len(self.later) : 3 * len(self.later)]

    @property
    def backwards(self) -> Counts:
        """Whose backward or input pass is over."""
        return self.counts[3 * len(self.later) :]

    def with_counts(self, counts: Counts) -> Situation:
        """The same kind, otherwise filled."""
        return self._replace(counts=counts)


# Situations of one kind, its counts zero, and the counts of the fullest of them.
Alike = tuple[Situation, tuple[Counts, ...]]


def situations(schedule: str, ranks: int, micro_batches: int, rank: int) -> list[Alike]:
    """The fullest situations of a pipeline rank, by kind.

    Once a pipeline is full, more micro-batches only add to what has been sent; where all forwards
    come first, each more is one more that waits. So a few stand for many.
    """
    few = _few(schedule, ranks, micro_batches)
    more = micro_batches - few
    found = _of_few(schedule, ranks, few)[rank]
    if not more or schedule == "1f1b":
        return found
    change = _more_waiting if schedule in ALL_FORWARDS_FIRST else _more_sent
    return [(kind, change(kind, fullest, few, more)) for kind, fullest in found]


@functools.lru_cache(maxsize=256)
def _of_few(schedule: str, ranks: int, micro_batches: int) -> list[list[Alike]]:
    found = []
    for rank, order in enumerate(orders(schedule, ranks, micro_batches)):
        held = stage_indices(schedule, rank, ranks, stage_count(ranks, schedule))
        kinds: dict[Situation, set[Counts]] = {}
        for kind, counts in _all(order, held):
            # In 1F1B nothing that was sent adds up.
            adds_up = counts if schedule != "1f1b" else (*counts[:2], 0, 0)
            kinds.setdefault(kind, set()).add(adds_up)
        found.append([(kind, _fullest(counts)) for kind, counts in kinds.items()])
    return found


def _few(schedule: str, ranks: int, micro_batches: int) -> int:
    if schedule in ALL_FORWARDS_FIRST:
        return min(micro_batches, 4)
    if schedule == "1f1b":
        return min(micro_batches, ranks + 2)
    if schedule in V_SHAPED or micro_batches % ranks == 0:
        return min(micro_batches, 3 * ranks)
    return micro_batches  # rounds that do not divide evenly


def _more_waiting(
    kind: Situation, fullest: Iterable[Counts], few: int, more: int
) -> tuple[Counts, ...]:
    """All forwards first: as many more wait, or have been sent back."""
    found = []
    for counts in fullest:
        one = kind.with_counts(counts)
        waiting, forwards, backwards = (
            tuple(n + more if n else 0 for n in part)
            for part in (one.waiting, one.forwards, one.backwards)
        )
        ended = tuple(n + more if n == few else n for n in one.backwards)
        found.append(waiting + one.halves + forwards + ended)
        if kind.kind == "backward":
            found.append(one.waiting + one.halves + forwards + backwards)
    return tuple(found)


def _more_sent(
    kind: Situation, fullest: tuple[Counts, ...], _few: int, more: int
) -> tuple[Counts, ...]:
    """A full pipeline: as many more have been sent on and back."""
    if not all(kind.later):
        return fullest
    half = 2 * len(kind.later)
    return tuple((*counts[:half], *(n + more for n in counts[half:])) for counts in fullest)


def _all(order: Sequence[Pass], held: list[int]) -> Iterator[tuple[Situation, Counts]]:
    """Every pass of a rank: its kind, and what is held meanwhile."""
    waiting, halves, ended = [0] * len(held), [0] * len(held), [0] * len(held)
    forwards, backwards = [0] * len(held), [0] * len(held)
    nothing = (0,) * 4 * len(held)
    micro_batches = len({work.micro_batch for work in order})
    for work in order:
        at = held.index(work.stage)
        if work.kind in ("backward", "input"):
            waiting[at] -= 1
        elif work.kind == "weight":
            halves[at] -= 1
        later, done = (tuple(n >= least for n in ended) for least in (1, micro_batches))
        kind = Situation(work.kind, at, later, done, nothing)
        yield kind, (*waiting, *halves, *forwards, *backwards)
        if work.kind == "forward":
            waiting[at] += 1
            forwards[at] += 1
        if work.kind in ("backward", "input"):
            backwards[at] += 1
        if work.kind == "input":
            halves[at] += 1
        if work.kind in ("backward", "weight"):
            ended[at] += 1


def _fullest(found: Iterable[Counts]) -> tuple[Counts, ...]:
    """Those that no other exceeds in everything."""
    highest: list[Counts] = []
    # By their sum: none exceeds one that comes before it.
    for counts in sorted(found, key=sum, reverse=True):
        if not any(all(map(le, counts, other)) for other in highest):
            highest.append(counts)
    return tuple(highest)


@functools.lru_cache(maxsize=1024)
def gathers(schedule: str, ranks: int, micro_batches: int) -> tuple[int, ...]:
    """Of each rank: forward passes that follow no backward pass of their stage.

    A rank with several stages has as many in each of them.
    """
    few = _few(schedule, ranks, micro_batches)
    found = []
    for order in orders(schedule, ranks, few):
        stage = order[0].stage
        kinds = [work.kind for work in order if work.stage == stage]
        follow = zip(kinds, ["forward", *kinds], strict=False)
        number = sum(kind == before == "forward" for kind, before in follow)
        found.append(micro_batches if number == few else number)
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def halved(schedule: str, ranks: int, micro_batches: int) -> tuple[Counts, ...]:
    """Of each rank and each of its stages: how many backward passes are halved."""
    if schedule not in ZERO_BUBBLE:
        return ((0,) * stages_per_rank(schedule),) * ranks
    if schedule != "dualpipev":
        return ((micro_batches,) * 2,) * ranks
    found = []
    for rank, order in enumerate(orders(schedule, ranks, 2 * ranks)):
        held = stage_indices(schedule, rank, ranks, 2 * ranks)
        inputs = [work.stage for work in order if work.kind == "input"]
        found.append(tuple(inputs.count(stage) for stage in held))
    return tuple(found)
