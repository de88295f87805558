"""What a pipeline rank holds during its passes (`parallel.pipeline`, torch.distributed.pipelining).

Of each micro-batch between forward and backward a stage keeps its activations and its output. For
every micro-batch and neighbour there is a buffer for what comes from there, from the first step on;
between two stages of one rank, which pass tensors on as they are, these take its place. How long
what was sent stays is a matter of when torch waits for it (pipelining/schedules.py):

    gpipe           outputs until their backward pass, gradients until the step's end
    1f1b            the last gradient; and, where a rank warms up, one early output
    two stages      everything until the step's end
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import mul

from parallab.plan import Plan
from parallab.predict.activations.layers import Sizes
from parallab.predict.occupancy import Situation, halved, situations
from parallab.predict.parts import Part
from parallab.predict.stage import Bytes, Stage
from parallab.stages import ONE_STAGE_A_RANK


class Piece:
    """Bytes by category, and their sum."""

    __slots__ = ("held", "total")

    def __init__(self, held: Bytes) -> None:
        self.held, self.total = held, sum(held.values())


@dataclass(frozen=True)
class Held:
    """One stage of a rank, and what is held of it.

    Attributes:
        first, last: whether it is at that end of the pipeline.
        receives, sends: whether the stage before, and behind, is on another rank.
        waiting: one micro-batch between forward and backward.
        half: one between the two halves of its backward pass.
        output, gradient: one output, and one gradient, that has been sent.
        between: gradients while another stage is at work, and `over`: when they are reduced.
        passes: what a pass takes, by its kind and by whether there are gradients already.
    """

    first: bool
    last: bool
    receives: bool
    sends: bool
    waiting: Piece
    half: Piece
    output: Piece
    gradient: Piece
    between: Piece
    over: Piece
    passes: Mapping[tuple[str, bool], Piece]


def stages_of(parts: Sequence[Part], sizes: Sizes, stages: Sequence[Stage]) -> tuple[Held, ...]:
    """The stages of a pipeline rank, from what they hold and their passes."""
    return tuple(_held(part, sizes, stage) for part, stage in zip(parts, stages, strict=True))


def _held(part: Part, sizes: Sizes, stage: Stage) -> Held:
    first, last, receives, sends = part.first, part.last, part.receives, part.sends
    # A local neighbour's buffers are counted apart, and the output is one of them.
    output = stage.output_bytes if sends or last else 0
    waiting = {
        "activations": stage.kept_bytes + output,
        "workspace": stage.kept_workspace_bytes,
    }
    half = {
        "activations": stage.left.activations + (0 if last else output),
        "temporary": stage.left.temporary,
        "communication": stage.left.communication,
    }
    between = stage.sharing.between()._asdict()
    weight = Counter(half) + Counter(between)
    return Held(
        first,
        last,
        receives,
        sends,
        Piece(waiting),
        # Nobody waits for a gradient of the first stage's input: torch leaves all to the weights'.
        Piece(waiting if first else half),
        Piece({"activations": output}),
        Piece({"communication": sizes.boundary_bytes}),
        Piece(between),
        Piece(stage.sharing.over()._asdict()),
        dict(_passes(stage, first, output, waiting, weight)),
    )


def _passes(
    stage: Stage, first: bool, output: int, waiting: Bytes, weight: Bytes
) -> Iterator[tuple[tuple[str, bool], Piece]]:
    """Each kind of pass, with the output that its micro-batch has kept since forward."""

    def with_output(held: Bytes) -> Piece:
        return Piece({**held, "activations": held["activations"] + output})

    for later in (False, True):
        backward = with_output(stage.backward[later])
        yield ("forward", later), Piece(stage.forward[later])
        yield ("backward", later), backward
        if stage.halves is not None:
            inputs = Piece(waiting) if first else with_output(stage.halves[later])
            yield ("input", later), inputs
            yield ("weight", later), backward if first else Piece(weight)


def highest(plan: Plan, pp: int, sizes: Sizes, mine: Sequence[Held]) -> tuple[Bytes, Bytes]:
    """The fullest forward and the fullest backward pass of a rank.

    Returns:
        Bytes by category, without what is there throughout the step.
    """
    worth: list[int] = []
    fullest: dict[bool, tuple[int, Situation]] = {}
    for kind, some in situations(plan.schedule, plan.pp, plan.micro_batches, pp):
        empty = _total(plan, pp, kind, mine)
        worth = worth or list(_worth(plan, pp, kind, mine, empty))
        for counts in some:
            total = empty + sum(map(mul, worth, counts))
            forward = kind.kind == "forward"
            if forward not in fullest or total > fullest[forward][0]:
                fullest[forward] = total, kind.with_counts(counts)
    highest = [_sum(_pieces(plan, pp, fullest[forward][1], mine)) for forward in (True, False)]
    for held in highest:
        held["communication"] += received_bytes(plan, sizes, mine)
    return highest[0], highest[1]


def _total(plan: Plan, pp: int, found: Situation, mine: Sequence[Held]) -> int:
    return sum(number * piece.total for number, piece in _pieces(plan, pp, found, mine))


def _worth(plan: Plan, pp: int, kind: Situation, mine: Sequence[Held], empty: int) -> Iterator[int]:
    """Bytes that one more of each count adds: `_pieces` is linear in them, and alike for all kinds.

    Args:
        empty: bytes of the kind with nothing counted.
    """
    for i in range(len(kind.counts)):
        one = kind.with_counts((*kind.counts[:i], 1, *kind.counts[i + 1 :]))
        yield _total(plan, pp, one, mine) - empty


def _sum(pieces: Iterator[tuple[int, Piece]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for number, piece in pieces:
        for category, size in piece.held.items():
            total[category] += number * size
    return total


def _pieces(
    plan: Plan, pp: int, found: Situation, mine: Sequence[Held]
) -> Iterator[tuple[int, Piece]]:
    """What a rank holds in one situation: how many of each piece."""
    this = mine[found.stage]
    yield 1, this.passes[found.kind, found.later[found.stage]]
    two_stages = plan.schedule not in ONE_STAGE_A_RANK
    for at, one in enumerate(mine):
        waiting, halves = found.waiting[at], found.halves[at]
        yield waiting, one.waiting
        yield halves, one.half
        if at != found.stage and found.later[at]:
            # ZeRO-2 has one reduction under way, that of the stage at work.
            reduced = found.later[found.stage] if plan.data == "zero2" else found.done[at]
            yield 1, one.over if reduced else one.between
        if one.receives and (two_stages or plan.schedule == "gpipe"):
            yield found.backwards[at], one.gradient
        if one.sends and two_stages:
            with_micro_batch = waiting + halves + (one is this and found.kind != "forward")
            yield found.forwards[at] - with_micro_batch, one.output
    if plan.schedule == "1f1b" and found.later[0]:
        yield from _lingering(plan, pp, found, this)


def _lingering(plan: Plan, pp: int, found: Situation, this: Held) -> Iterator[tuple[int, Piece]]:
    """1F1B: the gradient that was sent last, the output that was sent before the last of the
    warm-up, and the last stage's logits, which have a name until the next are there.
    """
    if this.receives:
        yield 1, this.gradient
    if this.last == (found.kind == "forward") and (this.last or pp < plan.pp - 1):
        yield 1, this.output


def received_bytes(plan: Plan, sizes: Sizes, mine: Sequence[Held]) -> int:
    """Activations and gradients from the neighbours of every stage, of every micro-batch."""
    borders = sum((not one.first) + (not one.last) for one in mine)
    return borders * plan.micro_batches * sizes.boundary_bytes


def left_bytes(plan: Plan, pp: int, sizes: Sizes, mine: Sequence[Held]) -> int:
    """Gradients that halved passes leave at their inputs until the next step."""
    counts = halved(plan.schedule, plan.pp, plan.micro_batches)[pp]
    return sizes.boundary_bytes * sum(
        number * one.receives for number, one in zip(counts, mine, strict=True)
    )
