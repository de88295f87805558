"""The highest moments of a rank's step, each a sum by category.

Every moment is made of what is there all the time (weights, optimizer state, tables, token ids),
what waits for its backward pass, and what the pass under way takes (`stage`, `sharing`):

    forward     the unit at which the forward pass is highest: mostly the head, with its logits
    backward    the same of the backward pass: the loss's gradient, or a block's
    optimizer   gradients, and what the update takes
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.predict import classic, pipelines
from parallab.predict.activations import units
from parallab.predict.activations.layers import Sizes
from parallab.predict.memory import held_states, optimizer_temporary, stepped_elements
from parallab.predict.occupancy import ALL_FORWARDS_FIRST
from parallab.predict.parts import parts_of
from parallab.predict.ranks import same_parts
from parallab.predict.stage import Bytes, DataAxis, Stage, stage
from parallab.report import CATEGORIES, PHASES, Memory, PhaseMemory
from parallab.stages import ZERO_BUBBLE


@dataclass(frozen=True)
class RankParts:
    """What one rank's step is made of.

    Attributes:
        stages: the passes of its stages, in the order in which a micro-batch meets them.
        pipelined: the same with what a pipeline holds of them; empty without one.
        states: bytes of parameters, gradients, optimizer and buffers when the optimizer begins.
        always: bytes by category that are there throughout the step.
        update: bytes that the optimizer takes and gives back.
    """

    sizes: Sizes
    stages: tuple[Stage, ...]
    pipelined: tuple[pipelines.Held, ...]
    states: Bytes
    always: Bytes
    update: int


def peak_memory(model: Model, plan: Plan, rank: int, kernels: str) -> Memory:
    """One rank's memory in a step, as a Report holds it."""
    return as_memory(*highest_moments(model, plan, rank, kernels))


def highest_moments(
    model: Model, plan: Plan, rank: int, kernels: str
) -> tuple[Bytes, dict[str, Bytes]]:
    """The states that the optimizer finds, and the highest moment of each phase, by category."""
    parts = rank_parts(model, plan, same_parts(model, plan, rank), kernels)
    moments = zip(PHASES, _moments(plan, rank, parts), strict=True)
    highest = {phase: _sum(parts.always, max(held, key=_total)) for phase, held in moments}
    return parts.states, {phase: _by_category(held) for phase, held in highest.items()}


def as_memory(states: Bytes, highest: Mapping[str, Bytes]) -> Memory:
    """The same as a Report holds it."""
    peak = max(highest.values(), key=_total)
    return Memory(
        peak_bytes=_total(peak),
        at_peak=dict(peak),
        states=dict(states),
        phases=[PhaseMemory(phase, _total(held), dict(held)) for phase, held in highest.items()],
    )


@functools.lru_cache(maxsize=256)
def rank_parts(model: Model, plan: Plan, rank: int, kernels: str) -> RankParts:
    """The parts that a rank's moments are sums of."""
    coords = plan.coordinates(rank)
    sizes = units.sizes_of(model, plan, coords["tp"], kernels)
    axis = data_axis(plan, coords["pp"])
    again, halved = plan.recompute == "full", plan.pp > 1 and plan.schedule in ZERO_BUBBLE
    held = parts_of(model, plan, coords["pp"])
    stages = [stage(sizes, part, axis, coords["tp"], again, halved) for part in held]
    states = held_states(model, plan, rank)
    always = {name: states[name] for name in ("parameters", "optimizer", "buffers")}
    return RankParts(
        sizes=sizes,
        stages=tuple(stages),
        pipelined=pipelines.stages_of(held, sizes, stages) if plan.pp > 1 else (),
        states=states,
        always=_sum(always, _ids(plan, coords["dp"], kernels)),
        update=optimizer_temporary(plan, stepped_elements(model, plan, rank), kernels),
    )


def data_axis(plan: Plan, pp: int) -> DataAxis:
    """What the passes of one pipeline rank depend on; what does not matter is left out."""
    third = plan.data == "zero2" and _two_over(plan, pp)
    sharded = plan.data in ("zero2", "zero3")
    in_a_row = sharded and plan.pp > 1 and plan.schedule in ALL_FORWARDS_FIRST
    return DataAxis(plan.data, plan.dp, third, in_a_row)


def _two_over(plan: Plan, pp: int) -> bool:
    """Whether two micro-batches have left their gradients when a rank is fullest."""
    if plan.pp == 1:
        return plan.micro_batches > 2
    if plan.schedule == "1f1b":  # as many are under way as ranks are left
        return plan.micro_batches >= plan.pp - pp + 2
    return plan.micro_batches > 1  # when the rank's other stage begins


def _ids(plan: Plan, dp: int, kernels: str) -> Bytes:
    """Token ids and targets, 8 bytes each.

    On the CPU every rank draws those of the global batch, where the meter does not see them being
    made; a CUDA device has its share.
    """
    everyones, share = 16 * plan.batch * plan.seq, 16 * plan.rank_batch * plan.seq
    if plan.data != "dp":
        return {"workspace": everyones} if kernels == "cpu" else {"activations": share}
    if dp:
        return {"workspace": everyones} if kernels == "cpu" else {}
    # The token ids are a collective's buffer.
    half = everyones // 2
    return {"communication": half, "workspace" if kernels == "cpu" else "activations": half}


def _moments(
    plan: Plan, rank: int, parts: RankParts
) -> tuple[list[Bytes], list[Bytes], list[Bytes]]:
    """Candidates for the highest moment of each phase."""
    only = parts.stages[0]
    forward: list[Bytes]
    backward: list[Bytes]
    update = Counter(gradients=parts.states["gradients"], temporary=parts.update)
    if plan.pp > 1:
        pp = plan.coordinates(rank)["pp"]
        one_each = pipelines.highest(plan, pp, parts.sizes, parts.pipelined)
        forward, backward = [one_each[0]], [one_each[1]]
        update["communication"] = pipelines.received_bytes(plan, parts.sizes, parts.pipelined)
        update["communication"] += pipelines.left_bytes(plan, pp, parts.sizes, parts.pipelined)
    elif plan.data == "dp":
        forward = [_sum(*held) for held in classic.forward(plan, parts.sizes, only, rank == 0)]
        backward = [_sum(*held) for held in classic.backward(plan, parts.sizes, only, rank == 0)]
    else:
        # The first micro-batch, and one that finds gradients.
        times = 1 if plan.micro_batches == 1 else 2
        forward, backward = list(only.forward[:times]), list(only.backward[:times])
    return forward, backward, [update]


def _sum(*parts: Bytes) -> Counter[str]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return total


def _total(held: Bytes) -> int:
    return sum(held.values())


def _by_category(held: Bytes) -> dict[str, int]:
    return {category: held.get(category, 0) for category in CATEGORIES}
