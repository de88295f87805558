"""Which plan a panel proposes: what a person asked for, changed as little as makes it work.

A choice stands, and only what comes after it gives way:

    strategy > devices > degrees > schedule, ZeRO stage, ... > micro-batches > batch

Whatever had to give way stays a wish, and comes back as soon as it fits. Which options a strategy
has, and what works, is read off the catalogue and Plan. Pure functions over plain choices.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from parallab.catalog import STRATEGIES, Strategy
from parallab.errors import PlanError
from parallab.models.spec import Model
from parallab.plan import Plan, why_not

# Plan's arguments by name. As wishes they are what a person set by hand, the latest last: always a
# strategy, devices and a batch. Without a pipeline, micro-batches are gradient accumulation, and a
# wish of its own.
Choices = dict[str, Any]

AXES = tuple({axis: None for row in STRATEGIES.values() for axis in row.axes})
OPTIONS = ("sequence_parallel", "zero", "schedule")
PLAIN = ("seq", "precision", "recompute", "optimizer")
_LEVELS = (
    ("strategy",),
    ("devices",),
    AXES,
    (*OPTIONS, "precision", "recompute", "optimizer"),
    ("micro_batches",),
    ("batch", "seq"),
)
_LEVEL = {name: level for level, names in enumerate(_LEVELS) for name in names}
_USUAL = Plan()


def ask(now: Choices, wishes: Choices, name: str, value: Any) -> tuple[Choices, Choices]:
    """What a person's choice leaves to be settled.

    Returns:
        The wishes with this one, and what is firm: the choice itself and all that comes before it.
    """
    level = _LEVEL[name]
    # Of the degrees only the chosen one is firm: the others must make up for it.
    beside = () if name in AXES else _LEVELS[level]
    firm = {n: v for n, v in now.items() if n in PLAIN or _LEVEL[n] < level or n in beside}
    firm[name] = value
    key = wish_of(name, now)
    wishes = {n: v for n, v in wishes.items() if n != key and (level > 1 or n not in AXES)}
    return {**wishes, key: value}, firm


def propose(
    model: Model, wishes: Choices, firm: Choices, counts: Sequence[int]
) -> tuple[Choices, str | None]:
    """The choices nearest to the wishes that work with what is firm.

    Args:
        counts: numbers of devices to choose from.

    Returns:
        The choices and None; or those that come nearest, and the reason why they cannot work.
    """
    nearest: tuple[Choices, str | None] | None = None
    for split in _splits(wishes, firm, counts):
        details = list(_details(split, wishes, firm))
        # Where even the plainest does not work, none does.
        reason = why_not(model, **details[-1])
        if reason is None:
            return next((c, None) for c in details if not why_not(model, **c))
        nearest = nearest or (details[-1], reason)
    assert nearest is not None, "there is always one way to split"
    return nearest


def matters(choices: Mapping[str, Any]) -> set[str]:
    """Which of the degrees, options and micro-batches make a difference to these choices."""
    row, degrees = STRATEGIES[choices["strategy"]], degrees_of(choices)
    names = set(row.axes) if len(row.axes) > 1 else set()
    if _takes_micro_batches(row.name):
        names.add("micro_batches")
        if degrees["pp"] > 1:
            names.add("schedule")  # an order of micro-batches
    if len(row.axes) > 1 and degrees["dp"] > 1:
        names.add("zero")
    if degrees["tp"] > 1:
        names.add("sequence_parallel")
    return names


def degrees_of(choices: Mapping[str, Any]) -> dict[str, int]:
    """The degree of every axis: a strategy's only axis takes all devices."""
    axes = STRATEGIES[choices["strategy"]].axes
    if len(axes) == 1:
        return dict.fromkeys(AXES, 1) | {axes[0]: choices["devices"]}
    return {axis: choices.get(axis, 1) for axis in AXES}


def wish_of(name: str, choices: Mapping[str, Any]) -> str:
    """The name of the wish behind a choice."""
    alone = name == "micro_batches" and degrees_of(choices)["pp"] == 1
    return "accumulation" if alone else name


def given_way(wishes: Choices, choices: Choices) -> list[tuple[str, Any, Any]]:
    """What could not be as it was wished: (name, wish, choice)."""
    names = ("devices", *OPTIONS, "micro_batches", "batch", "seq")
    pairs = [(n, wishes.get(wish_of(n, choices)), choices[n]) for n in names if n in choices]
    return [(name, wish, choice) for name, wish, choice in pairs if wish not in (None, choice)]


def usual_micro_batches(choices: Choices) -> int:
    """What Plan takes where nothing is said."""
    rest = {n: v for n, v in choices.items() if n not in ("micro_batches", "batch")}
    try:
        return Plan(**rest).micro_batches
    except PlanError:
        return 1


# How to split: devices and degrees.


def _splits(wishes: Choices, firm: Choices, counts: Sequence[int]) -> Iterator[Choices]:
    row = STRATEGIES[firm["strategy"]]
    for devices in [firm["devices"]] if "devices" in firm else _device_counts(row, wishes, counts):
        for degrees in _deals(row.axes, devices, wishes, firm):
            yield {"devices": devices, **degrees}


def _device_counts(row: Strategy, wishes: Choices, counts: Sequence[int]) -> list[int]:
    """The nearest to the wish first; after a choice of strategy, those that split all its axes."""
    if not row.axes:
        return [1]
    names, wish = list(wishes), wishes["devices"]
    as_wished = names.index("devices") > names.index("strategy")
    least = 1 if as_wished else 2 ** len(row.axes)
    return sorted(counts, key=lambda n: (n < least, abs(n - wish), -n))


def _deals(axes: tuple[str, ...], devices: int, wishes: Choices, firm: Choices) -> list[Choices]:
    """All degrees whose product is the number of devices, the nearest to the wishes first.

    The latest wish counts most. Without one an axis has degree 2, and the first takes the rest, as
    Plan has it.
    """
    if len(axes) < 2:
        return [{}]
    wished = [axis for axis in wishes if axis in axes]
    order = [*reversed(wished), *(axis for axis in reversed(axes) if axis not in wished)]

    def distance(deal: Choices) -> list[tuple[float, int]]:
        return [(abs(math.log2(deal[a] / wishes.get(a, 2))), -deal[a]) for a in order]

    deals = [dict(zip(axes, degrees, strict=True)) for degrees in _products(devices, len(axes))]
    held = {axis: firm[axis] for axis in axes if axis in firm}
    return sorted((deal for deal in deals if held.items() <= deal.items()), key=distance)


@functools.cache
def _products(number: int, factors: int) -> list[tuple[int, ...]]:
    """All ways to write a number as a product."""
    if factors == 1:
        return [(number,)]
    return [
        (first, *rest)
        for first in divisors(number)
        for rest in _products(number // first, factors - 1)
    ]


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    return [n for n in range(1, number + 1) if number % n == 0]


# How a step runs: options, micro-batches and batch.


def _details(split: Choices, wishes: Choices, firm: Choices) -> Iterator[Choices]:
    """From everything as it is wished to everything as it usually is."""
    choices = {**firm, **split}
    relevant = matters(choices)
    options = [name for name in OPTIONS if name in relevant]
    for values in itertools.product(*(_option(name, wishes, firm) for name in options)):
        chosen = {**choices, **dict(zip(options, values, strict=True))}
        for micro_batches in _micro_batches(chosen, wishes, firm):
            parts = degrees_of(chosen)["dp"] * micro_batches
            batch = firm.get("batch") or _nearest_multiple(wishes["batch"], parts)
            if "micro_batches" in relevant:
                chosen["micro_batches"] = micro_batches
            yield {**chosen, "batch": batch}


def _option(name: str, wishes: Choices, firm: Choices) -> list[Any]:
    if name in firm:
        return [firm[name]]
    usual = STRATEGIES[firm["strategy"]].zero if name == "zero" else getattr(_USUAL, name)
    wish = wishes.get(name, usual)
    return [wish, usual] if wish != usual else [usual]


def _micro_batches(choices: Choices, wishes: Choices, firm: Choices) -> list[int]:
    if "micro_batches" in firm:
        return [firm["micro_batches"]]
    usual = usual_micro_batches(choices)
    wish = wishes.get(wish_of("micro_batches", choices), usual)
    return [wish, usual] if wish != usual else [usual]


@functools.cache
def _takes_micro_batches(strategy: str) -> bool:
    many = 64  # enough for any schedule on the usual degrees
    try:
        return Plan(strategy, micro_batches=many).micro_batches == many
    except PlanError:
        return False


def _nearest_multiple(number: int, of: int) -> int:
    """Of two that are as near, the larger."""
    return max(of, (2 * number + of) // (2 * of) * of)
