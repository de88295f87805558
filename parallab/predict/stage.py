"""The passes of one pipeline stage: its units one after the other, and their highest moments.

Between two blocks of one kind the bytes change by the same amount from block to block, so the
highest is at an end of such a run: only the first and last two are looked at.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import add

from parallab.models.shapes import Shapes
from parallab.models.spec import count
from parallab.predict.activations import units
from parallab.predict.activations.layers import Sizes
from parallab.predict.activations.tape import Moment
from parallab.predict.activations.units import Left, Passes, Place
from parallab.predict.padding import flat_elements, row_elements
from parallab.predict.parts import EMBEDDING, OUTPUT, Part, sliced
from parallab.predict.sharing import (
    Bucketed,
    Flat,
    Gathered,
    Held,
    Kept,
    Reduced,
    Resident,
    Sharing,
    Unit,
)

Bytes = Mapping[str, int]

# torch.get_rng_state(): what checkpointing keeps of each block, so that dropout would be repeated.
RNG_STATE_BYTES = 5056


@dataclass(frozen=True)
class DataAxis:
    """What happens on the data axis, as far as a pass depends on it.

    Attributes:
        way: `Plan.data`.
        ranks: its degree.
        third: whether two micro-batches have left their gradients when a rank is fullest.
        in_a_row: whether all backward passes of a stage follow one another.
    """

    way: str
    ranks: int
    third: bool
    in_a_row: bool


@dataclass(frozen=True)
class Stage:
    """One stage on one rank, for one micro-batch.

    Attributes:
        kept_bytes: activations between forward and backward, without what the pipeline keeps.
        kept_workspace_bytes: what checkpointing keeps besides, on the CPU.
        output_bytes: what it makes: activations for the next stage, or logits.
        sharing: what the data axis holds meanwhile.
        forward, backward: the highest moment of each pass, without and with gradients of earlier
            micro-batches: bytes by category of this micro-batch and of the data axis.
        halves: the same of a backward pass that leaves out the weights, None where none is halved.
        left: what such a pass leaves.
    """

    kept_bytes: int
    kept_workspace_bytes: int
    output_bytes: int
    sharing: Sharing
    forward: tuple[Bytes, Bytes]
    backward: tuple[Bytes, Bytes]
    halves: tuple[Bytes, Bytes] | None
    left: Left


@functools.lru_cache(maxsize=512)
def stage(
    sizes: Sizes, part: Part, axis: DataAxis, tp: int, recompute: bool, halved: bool
) -> Stage:
    """The passes of a stage.

    Args:
        tp: this rank's place on the tensor axis.
        recompute: whether blocks keep only their input.
        halved: whether backward passes may be halved.
    """
    held = _units(sizes, part, axis, tp)
    sharing = _sharing(held, part, axis, sizes.element)
    walk = _Walk(sizes, part, held, sharing, recompute, halved)
    return Stage(
        walk.kept[-1],
        walk.checkpoint_bytes * part.blocks,
        _output_bytes(sizes, part),
        sharing,
        (walk.forward(False), walk.forward(True)),
        (walk.backward(False), walk.backward(True)),
        (walk.halved(False), walk.halved(True)) if halved else None,
        walk.left[-1],
    )


def _output_bytes(sizes: Sizes, part: Part) -> int:
    if part.last:
        return sizes.tokens * sizes.vocab * sizes.element
    return sizes.boundary_bytes


class _Walk:
    """Goes through a stage's passes, unit by unit.

    Attributes:
        kept: before each unit, what the units before it keep; then what all do.
    """

    def __init__(
        self, sizes: Sizes, part: Part, held: list[Unit], sharing: Sharing,
        recompute: bool, halved: bool,
    ) -> None:  # fmt: skip
        self.sizes, self.part = sizes, part
        self.held, self.sharing, self.recompute = held, sharing, recompute
        self.tied = sizes.model.tied and part.first and part.last
        self.waiting = sizes.vocab * sizes.model.hidden * sizes.element if self.tied else 0
        checkpoints = recompute and not sizes.fused
        self.checkpoint_bytes = RNG_STATE_BYTES if checkpoints else 0
        self.blocks = range(int(part.first), int(part.first) + part.blocks)
        self.kinds = [kind for kind, number in part.runs for _ in range(number)]
        self.kept = list(accumulate(map(self._kept, range(len(held))), initial=0))
        self.picked = sorted(set(self._picked(part)))
        self.left = self._left() if halved else [Left()]

    def _kept(self, unit: int) -> int:
        passes = self.held[unit].passes
        if self.recompute and unit in self.blocks:
            return passes.input_bytes
        return passes.kept_bytes

    def _picked(self, part: Part) -> Iterator[int]:
        """Units to look at: the ends, and the first and last two of each run of blocks."""
        yield from range(self.blocks.start)
        yield from range(self.blocks.stop, len(self.held))
        start = self.blocks.start
        for _, number in part.runs:
            yield from (start + i for i in (0, 1, number - 2, number - 1) if 0 <= i < number)
            start += number

    def forward(self, later: bool) -> Bytes:
        """The highest moment of the forward pass."""
        return max(self._forward(later), key=_total)

    def backward(self, later: bool) -> Bytes:
        """The highest moment of the backward pass."""
        return max(self._backward(later), key=_total)

    def _forward(self, later: bool) -> Iterator[Bytes]:
        for unit in self.picked:
            held = self.sharing.forward(unit, later)
            passes = self.held[unit].passes
            if self.recompute and unit in self.blocks:
                kind = self.kinds[unit - self.blocks.start]
                passes = units.block(self.sizes, Place(sparse=kind, keeping=False))
            elif unit >= self.blocks.stop + 1 and not self.part.first:
                continue  # a pipeline computes the loss after the pass
            for moment in passes.forward:
                yield self._bytes(unit, moment, held, self.kept[unit], 0)

    def _backward(self, later: bool) -> Iterator[Bytes]:
        for unit in self.picked:
            passes = self.held[unit].passes
            before, waiting = self.kept[unit], self.waiting
            if unit >= self.blocks.stop:
                waiting = 0  # it has yet to be made
            before += self._apart(unit, passes)
            for moment in passes.backward:
                held = self.sharing.backward(unit, moment, later)
                yield self._bytes(unit, moment, held, before, waiting)

    def halved(self, later: bool) -> Bytes:
        """The highest moment of a backward pass that leaves out the weights' gradients."""
        return max(self._halved(later), key=_total)

    def _halved(self, later: bool) -> Iterator[Bytes]:
        held = self.sharing.between() if later else Held()
        for unit in self.picked:
            after = self.left[unit]
            for moment in self._halved_passes(unit).backward:
                total = self._bytes(unit, moment, held, self.kept[unit], after.temporary)
                total["activations"] += after.activations
                total["communication"] += after.communication
                yield total

    def _halved_passes(self, unit: int) -> Passes:
        if unit in self.blocks:
            at = unit - self.blocks.start
            return units.block(
                self.sizes,
                Place(
                    at == 0 and not self.part.first,
                    at == len(self.blocks) - 1 and not self.part.last,
                    self.kinds[at],
                    halved=True,
                ),
            )
        if unit < self.blocks.start:
            return self.held[unit].passes
        if unit == self.blocks.stop:
            return units.head(self.sizes, False, halved=True)
        return units.loss(self.sizes, outside=True, halved=True)

    def _left(self) -> list[Left]:
        """What a halved pass has left when it comes to each unit; then what it leaves in all."""
        sums = [Left()]
        for unit in reversed(range(len(self.held))):
            left = self._halved_passes(unit).left
            sums.append(Left(*map(add, sums[-1], left)))
        *before, whole = sums
        return [*reversed(before), whole._replace(activations=whole.activations - whole.late)]

    def _apart(self, unit: int, passes: Passes) -> int:
        """A block's input where it will be computed again, and keeps something else of it."""
        apart = self.recompute and unit in self.blocks and not passes.input_kept
        return passes.input_bytes if apart else 0

    def _bytes(
        self, unit: int, moment: Moment, held: Held, before: int, waiting: int
    ) -> dict[str, int]:
        begun = min(max(0, unit + 1 - self.blocks.start), len(self.blocks))
        return {
            "gradients": held.gradients,
            "activations": before + moment.activations,
            "unsharded": held.unsharded,
            "communication": held.communication + moment.communication,
            "temporary": held.temporary + moment.temporary + waiting,
            "workspace": self.checkpoint_bytes * begun,
        }


def _total(held: Bytes) -> int:
    return sum(held.values())


def _units(sizes: Sizes, part: Part, axis: DataAxis, tp: int) -> list[Unit]:
    """The stage's units, in the order of forward; the loss is one without weights."""
    model = sizes.model
    tied_here = model.tied and part.first and part.last
    unit = functools.partial(_unit, tp_ranks=sizes.tp, tp=tp, ranks=axis.ranks)
    held: list[Unit] = []
    if part.first:
        whole = unit(units.embedding(sizes, tied_here), model.embedding_shapes())
        if model.tied and not tied_here:
            apart = unit(whole.passes, {EMBEDDING: (model.vocab, model.hidden)})
            whole = whole._replace(completed_last=apart.flat)
        held.append(whole)
    seen = 0
    for kind, length in part.runs:
        layer = next(i for i in range(model.layers) if model.is_sparse(i) == kind)
        plain = unit(units.block(sizes, Place(sparse=kind)), model.block_shapes(layer))
        for i in range(seen, seen + length):
            place = Place(i == 0 and not part.first, i == part.blocks - 1 and not part.last, kind)
            passes = units.block(sizes, place) if place.first or place.last else plain.passes
            held.append(plain._replace(passes=passes))
        seen += length
    if part.last:
        shapes = model.head_shapes()
        if model.tied and not part.first:
            shapes[OUTPUT] = (model.vocab, model.hidden)
        elsewhere = axis.way == "dp"  # rank 0 computes everyone's loss
        held.append(unit(units.head(sizes, tied_here, elsewhere), shapes))
        if not elsewhere:
            held.append(unit(units.loss(sizes, outside=not part.first), {}))
    return held


def _unit(passes: Passes, shapes: Shapes, tp_ranks: int, tp: int, ranks: int) -> Unit:
    here = {name: sliced(name, shape, tp_ranks, tp) for name, shape in shapes.items()}
    flat = flat_elements([here], ranks)
    return Unit(passes, count(here), flat, row_elements([here], ranks), flat)


def _sharing(held: list[Unit], part: Part, axis: DataAxis, element: int) -> Sharing:
    alone = part.first and part.last
    blocks = range(int(part.first), int(part.first) + part.blocks)
    match axis.way:
        case "none":
            return Kept(held, element)
        case "dp":
            return Flat(held, element, one_buffer=True)
        case "zero2":
            return Reduced(held, element, axis.ranks, axis.third, axis.in_a_row)
        case "zero3" if alone:
            return Gathered(held, blocks, element, axis.ranks)
        case "zero3":
            return Resident(held, blocks, element, axis.ranks, axis.in_a_row)
        case "replicate" | "zero1-torch" if alone:
            return Bucketed(held, element)
    return Flat(held, element)
