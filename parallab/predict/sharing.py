"""What the data axis holds while a stage runs forward and backward (`parallel.data`, `.zero`).

Autograd makes the gradient of one weight after the other. What becomes of it is all that the ways
of data parallelism differ in:

    Kept        it stays as it is: one device, and what only splits the model
    Bucketed    it is copied into a bucket that is always there: DDP, torch's ZeRO-1
    Flat        it is copied into its unit's flat buffer: ZeRO-1, classic DP, pipelines' all-reduce
    Reduced     the same, and the buffer goes when the next unit is complete: ZeRO-2
    Gathered    the unit's weights come before and its gradients go after: ZeRO-3; Resident: the
                same in a pipeline
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from parallab.predict.activations.tape import Moment
from parallab.predict.activations.units import Passes


class Unit(NamedTuple):
    """One unit of a stage, as a rank holds it before the data axis shards it.

    Attributes:
        passes: what its activations take.
        elements: weights, and `flat`, `rows`: the same with the padding of a flat buffer and of
            `fully_shard`, which pads each tensor's rows.
        completed_last: the flat buffer that is completed last: an embedding that a head on another
            stage shares has one of its own.
    """

    passes: Passes
    elements: int
    flat: int
    rows: int
    completed_last: int


class Held(NamedTuple):
    """Bytes that the data axis holds at one moment, by category."""

    gradients: int = 0
    unsharded: int = 0
    communication: int = 0
    temporary: int = 0


class Sharing(Protocol):
    """One way of sharing the data.

    Units count in the order of forward. `later` says that an earlier micro-batch has left its
    gradients.
    """

    def forward(self, unit: int, later: bool) -> Held:
        """While a unit runs forward."""

    def backward(self, unit: int, at: Moment, later: bool) -> Held:
        """At one moment of a unit's backward pass."""

    def between(self) -> Held:
        """After a pass, when backward passes have been."""

    def over(self) -> Held:
        """The same when all that there was to reduce has been reduced."""


class Kept:
    """Gradients stay where autograd made them."""

    def __init__(self, units: Sequence[Unit], element: int) -> None:
        self.element = element
        self.after = _after([unit.elements for unit in units])
        self.whole = self.after[-1]

    def forward(self, unit: int, later: bool) -> Held:
        return Held(gradients=self.element * self.whole * later)

    def backward(self, unit: int, at: Moment, later: bool) -> Held:
        if later:
            return Held(self.element * self.whole, temporary=self.element * at.fresh)
        return Held(self.element * (self.after[unit] + at.gradients + at.fresh))

    def between(self) -> Held:
        return Held(self.element * self.whole)

    def over(self) -> Held:
        return self.between()


class Bucketed(Kept):
    """Gradients are copied into buckets, which are there all the time (arXiv:2006.15704, 3.2.3)."""

    def forward(self, unit: int, later: bool) -> Held:
        return super().forward(unit, True)

    def backward(self, unit: int, at: Moment, later: bool) -> Held:
        return super().backward(unit, at, True)


class Flat:
    """Gradients are copied into the flat buffer of their unit, which its first gradient makes."""

    def __init__(self, units: Sequence[Unit], element: int, one_buffer: bool = False) -> None:
        self.element = element
        self.sizes = [unit.flat for unit in units]
        self.after = _after(self.sizes)
        self.whole = self.after[-1]
        self.one_buffer = one_buffer

    def forward(self, unit: int, later: bool) -> Held:
        return Held(self.element * self.whole * later)

    def backward(self, unit: int, at: Moment, later: bool) -> Held:
        begun = at.gradients > 0 or at.first
        if later or (self.one_buffer and (begun or self.after[unit])):
            filled = self.whole
        else:
            filled = self.after[unit] + self.sizes[unit] * begun
        return Held(self.element * filled, temporary=self.element * at.fresh)

    def between(self) -> Held:
        return Held(self.element * self.whole)

    def over(self) -> Held:
        return self.between()


class Reduced:
    """Flat buffers of one unit at a time, and the one before, whose reduction is under way.

    Args:
        third: whether there is a third micro-batch: from the second on, what arrives is a buffer
            of its own, added to the share.
        in_a_row: whether all backward passes follow one another: the second is fuller than that.
    """

    def __init__(
        self, units: Sequence[Unit], element: int, ranks: int, third: bool, in_a_row: bool
    ) -> None:
        self.element, self.ranks, self.third, self.in_a_row = element, ranks, third, in_a_row
        self.sizes = [unit.flat for unit in units]
        self.after = _after(self.sizes)
        self.whole = self.after[-1]
        self.last = next(unit.completed_last for unit in units if unit.flat)
        # The unit that was completed before each: the next with weights, and before the last the
        # first of the micro-batch before.
        self.before = [next((n for n in self.sizes[i + 1 :] if n), 0) for i in range(len(units))]

    def forward(self, unit: int, later: bool) -> Held:
        return self.between() if later else Held()

    def backward(self, unit: int, at: Moment, later: bool) -> Held:
        filled = self.sizes[unit] * (at.gradients > 0 or at.first)
        before = self.before[unit]
        if not later:
            shards = self.after[unit] // self.ranks
        elif before:
            shards = (self.whole + before) // self.ranks
        else:
            third = self.third and not self.in_a_row
            return self._held(self._waiting(third), filled, at.fresh)
        return self._held(shards + before, filled, at.fresh)

    def between(self) -> Held:
        return self._held(self._waiting(self.third), 0, 0)

    def over(self) -> Held:
        return self._held(self.whole // self.ranks, 0, 0)

    def _waiting(self, third: bool) -> int:
        """All shards, the flat buffer that was completed last, and its share on arrival."""
        return (self.whole + self.last * third) // self.ranks + self.last

    def _held(self, before: int, filled: int, fresh: int) -> Held:
        return Held(self.element * (before + filled), temporary=self.element * fresh)


class Gathered:
    """ZeRO-3 by `fully_shard` (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py).

    Embedding and head are one unit, the root, gathered throughout the passes of the model, but not
    while the loss is computed. A block's weights arrive in a flat buffer while the one before
    computes; its flat gradients stay until those of the next have been reduced.

    Args:
        units: of one stage.
        blocks: their indices.
    """

    def __init__(self, units: Sequence[Unit], blocks: range, element: int, ranks: int) -> None:
        self.element, self.ranks, self.blocks = element, ranks, blocks
        inside = [i in blocks for i in range(len(units))]
        self.rows = [unit.rows * block for unit, block in zip(units, inside, strict=True)]
        self.after = _after(self.rows)
        self.root = sum(unit.rows for unit in units) - self.after[-1]
        ends = [unit.elements * (not block) for unit, block in zip(units, inside, strict=True)]
        self.ends_after = _after(ends)
        self.whole = self.root + self.after[-1]
        self.elements = sum(unit.elements for unit in units)
        self.model = [unit.elements > 0 for unit in units]

    def forward(self, unit: int, later: bool) -> Held:
        shards = self.whole // self.ranks * later
        if not self.model[unit]:
            return self._held(shards, 0, 0)
        buffer = self.rows[unit] or (self.rows[unit - 1] if unit else 0)
        return self._held(shards, self.root + self.rows[unit], buffer)

    def backward(self, unit: int, at: Moment, later: bool) -> Held:
        shards = (self.whole if later else self.after[unit]) // self.ranks
        if not self.model[unit]:
            return self._held(shards, 0, 0)
        weights = self.root + self.rows[unit]
        gradients = self.ends_after[unit] + at.gradients + at.fresh
        reduced = self.rows[unit + 1] if unit + 1 < len(self.rows) else 0
        buffers = self._arriving(unit, at) + reduced
        return self._held(shards, weights + gradients, buffers)

    def between(self) -> Held:
        return self.over()

    def over(self) -> Held:
        return self._held(self.whole // self.ranks, 0, 0)

    def _arriving(self, unit: int, at: Moment) -> int:
        """The next block's buffer; as the head begins, the root's before it."""
        if unit >= self.blocks.stop and not at.begun:
            return self.root
        return self.rows[unit - 1] if unit else 0

    def _held(self, shards: int, unsharded: int, communication: int) -> Held:
        e = self.element
        return Held(e * shards, e * unsharded, e * communication)


class Resident(Gathered):
    """The same in a pipeline: torch reduces once a step, and until then keeps whole gradients.

    What a backward pass has gathered stays until the next forward pass has used it.

    Args:
        in_a_row: whether all backward passes follow one another.
    """

    def __init__(
        self, units: Sequence[Unit], blocks: range, element: int, ranks: int, in_a_row: bool
    ) -> None:
        super().__init__(units, blocks, element, ranks)
        self.in_a_row = in_a_row
        self.done = _after([unit.elements for unit in units])

    def forward(self, unit: int, later: bool) -> Held:
        if not later:
            return super().forward(unit, later)
        weights = self.root + self.after[unit] + self.rows[unit]
        return self._held(0, weights + self.elements, 0)

    def backward(self, unit: int, at: Moment, later: bool) -> Held:
        gradients = self.elements if later else self.done[unit] + at.gradients + at.fresh
        if later and self.in_a_row:
            weights, buffer = self.whole, 0
        elif self.model[unit]:
            weights = self.root + self.after[unit] + self.rows[unit]
            buffer = self._arriving(unit, at)
            if unit == len(self.rows) - 1 and not at.begun:
                buffer += self.root  # without a head, the root comes with the last block
        else:
            weights = buffer = 0
        held = self._held(0, weights + gradients, buffer)
        return held._replace(temporary=self.element * at.fresh) if later else held

    def between(self) -> Held:
        return self._held(0, self.whole + self.elements, 0)


def _after(sizes: Sequence[int]) -> list[int]:
    """For each unit, what the units after it add up to; then what all do."""
    sums = list(accumulate(reversed(sizes), initial=0))
    return [*reversed(sums[:-1]), sums[-1]]
