"""What shards are padded to: ZeRO's flat buffers, and the rows that `fully_shard` deals out."""

from __future__ import annotations

import math
from collections.abc import Iterable

from parallab.models.spec import count
from parallab.predict.parts import Unit, counted


def elements(units: Iterable[Unit]) -> int:
    """Elements of all units together."""
    return sum(times * count(unit) for unit, times in counted(units))


def flat_elements(units: Iterable[Unit], ranks: int) -> int:
    """Elements of ZeRO-1 and 2's flat buffers: each unit padded to a multiple of `ranks`."""
    return sum(times * _padded(count(unit), ranks) for unit, times in counted(units))


def row_elements(units: Iterable[Unit], ranks: int) -> int:
    """Elements that ZeRO-3 gathers: `fully_shard` pads each tensor's first dimension to ranks."""
    return sum(
        times * count({name: (_padded(first, ranks), *rest)})
        for unit, times in counted(units)
        for name, (first, *rest) in unit.items()
    )


def row_share(units: Iterable[Unit], ranks: int, rank: int) -> int:
    """Elements that `fully_shard` leaves on a rank: rows are dealt out like `torch.chunk` does."""
    return sum(
        times * held_rows(first, ranks, rank) * math.prod(rest)
        for unit, times in counted(units)
        for first, *rest in unit.values()
    )


def held_rows(rows: int, ranks: int, rank: int) -> int:
    """How many of a tensor's rows `fully_shard` leaves on a rank."""
    chunk = -(-rows // ranks)
    return max(0, min(chunk, rows - rank * chunk))


def _padded(size: int, ranks: int) -> int:
    return -(-size // ranks) * ranks
