"""Deep models from shallow ones: every block is like the others, so that costs grow in lines.

A step is simulated with few blocks in each stage of a rank, and with one more. From the two follows
what any number of blocks costs:

    bytes that are held or sent       one line through the two
    memory at a moment of a pass      a line for each moment of the pass, counted from its beginning
                                      and from its end; the peak is the highest of all lines there

That the lines of all moments are followed matters: which one is the highest may change with depth.
A third size checks everything before it is used. Where a number is not on its line (torch's ZeRO-1
deals out tensors as they fit), the whole model is simulated.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

from parallab.meter.categories import Row
from parallab.report import CATEGORIES, PHASES, Memory, PhaseMemory, Step

Sizes = tuple[int, int, int]
# Blocks of a rank's smallest stage: two sizes that make the lines, and one that checks them. Later
# ones are for plans where more of the blocks at either end of a pass differ from those between.
TRIALS: tuple[Sizes, ...] = ((1, 2, 4), (2, 3, 6), (3, 4, 7), (4, 5, 8))


@dataclass(frozen=True)
class Trace:
    """One simulated step, and its memory at every moment."""

    step: Step
    moments: list[Row]


Simulate = Callable[[Mapping[int, int]], Trace]


class NoLineError(Exception):
    """Three numbers that are not on one line."""


def whole_step(
    simulate: Simulate, blocks: Mapping[int, int], trials: Iterable[Sizes] = TRIALS
) -> tuple[Step, list[int]]:
    """The step of a rank whose stages hold so many blocks.

    Args:
        simulate: runs a step with other numbers of blocks.
        blocks: stage -> blocks.
        trials: sizes to try, each where that is less work than the whole.

    Returns:
        The step, and from how many blocks in the smallest stage it follows, the third being the
        check; none where it was simulated whole.
    """
    depth = min(blocks.values())

    @functools.cache
    def of_size(size: int) -> Trace:
        return simulate({stage: n - depth + size for stage, n in blocks.items()})

    for sizes in trials:
        if depth <= sum(sizes):
            break
        first, second, third = map(of_size, sizes)
        far = sizes[2] - sizes[0]
        with contextlib.suppress(NoLineError):
            lines = Lines(first, second, third, far)
            if lines.step(far) == third.step:
                return lines.step(depth - sizes[0]), list(sizes)
    return simulate(blocks).step, []


class Lines:
    """What a step costs by the number of blocks.

    Args:
        first: the smallest step; the second has one block more in each stage.
        third: a larger one, with `far` blocks more than the first.

    Raises:
        NoLineError: the third is not on the lines through the other two.
    """

    def __init__(self, first: Trace, second: Trace, third: Trace, far: int) -> None:
        traces = first, second, third
        self._far = far
        self._sums = tuple(_without_peaks(trace.step) for trace in traces)
        _along(self._sums, far, far)
        by_stretch = [_stretches(trace.moments) for trace in traces]
        if len({len(stretches) for stretches in by_stretch}) > 1:
            raise NoLineError
        self._moments = [
            line
            for stretches in zip(*by_stretch, strict=True)
            for line in self._lines_of(*stretches)
        ]

    def step(self, more: int) -> Step:
        """The step with `more` blocks a stage than the first."""
        sums = _along(self._sums, self._far, more)
        highest: dict[str, list[int]] = {}
        for phase, base, slope in self._moments:
            at = [b + s * more for b, s in zip(base, slope, strict=True)]
            if phase not in highest or sum(at) > sum(highest[phase]):
                highest[phase] = at
        peak = max(highest.values(), key=sum)
        phases = [
            PhaseMemory(p, sum(highest[p]), _named(highest[p])) for p in PHASES if p in highest
        ]
        memory = Memory(sum(peak), _named(peak), sums.pop("states"), phases)
        return Step.from_dict({**sums, "memory": asdict(memory)})

    def _lines_of(
        self, first: list[Row], second: list[Row], third: list[Row]
    ) -> Iterator[tuple[str, list[int], list[int]]]:
        """The lines of one stretch's moments: phase, bytes in the first step, bytes a block.

        A moment may be known by its distance from the stretch's beginning, from its end, or both:
        then it is two moments of a deeper model. Every moment must be one of these.
        """
        head = self._on_line(first, second, third)
        tail = self._on_line(first[::-1], second[::-1], third[::-1])
        if len(head) + len(tail) < len(first):
            raise NoLineError
        yield from head
        yield from reversed(tail)

    def _on_line(
        self, first: list[Row], second: list[Row], third: list[Row]
    ) -> list[tuple[str, list[int], list[int]]]:
        """The moments until the first that is not on a line."""
        found = []
        for a, b, c in zip(first, second, third, strict=False):
            slope = [y - x for x, y in zip(a.by_category, b.by_category, strict=True)]
            ends = [x + s * self._far for x, s in zip(a.by_category, slope, strict=True)]
            if ends != c.by_category:
                break
            found.append((a.phase, a.by_category, slope))
        return found


def _stretches(moments: list[Row]) -> list[list[Row]]:
    """Moments by the pass, or the time between passes, that they belong to."""
    return [list(rows) for _, rows in groupby(moments, key=lambda row: row.stretch)]


def _named(by_category: list[int]) -> dict[str, int]:
    return dict(zip(CATEGORIES, by_category, strict=True))


def _without_peaks(step: Step) -> dict[str, Any]:
    """All numbers of a step that are sums over its blocks."""
    sums = asdict(replace(step, memory=Memory(0)))
    del sums["memory"]
    return {**sums, "states": step.memory.states}


def _along(three: tuple[Any, ...], far: int, more: int) -> Any:
    """Plain data whose whole numbers have followed their lines for `more` blocks.

    Args:
        three: the same data of the first, the second and the third step.

    Raises:
        NoLineError: the three are not of one shape, or a number is not on its line.
    """
    first, second, third = three
    match first:
        case dict():
            if not first.keys() == second.keys() == third.keys():
                raise NoLineError
            return {key: _along(tuple(data[key] for data in three), far, more) for key in first}
        case list():
            if not len(first) == len(second) == len(third):
                raise NoLineError
            return [_along(parts, far, more) for parts in zip(*three, strict=True)]
        case bool() | str() | None:
            if not first == second == third:
                raise NoLineError
            return first
    if first + (second - first) * far != third:
        raise NoLineError
    return first + (second - first) * more
