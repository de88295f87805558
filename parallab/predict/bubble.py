"""The bubble: time in which pipeline ranks wait, because work has yet to reach them or is done.

    idle of ideal   how much longer the pipeline takes than its work alone would
    idle of total   the part of the devices' time that is lost

For p ranks and m micro-batches of GPipe or 1F1B these are (p-1)/m and (p-1)/(m+p-1). Sources call
either one the bubble: Megatron-LM (arXiv:2104.04473) the first, GPipe (arXiv:1811.06965) the
second.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parallab.plan import Plan
from parallab.report import Step
from parallab.schedules import Kind, orders, planned
from parallab.stages import ONE_STAGE_A_RANK

# Halves as long as a forward pass, since each is as many operations: the assumption under which the
# zero-bubble schedules are drawn (arXiv:2401.10241, section 2). Recomputing forwards breaks it.
UNITS: dict[Kind, float] = {"forward": 1, "input": 1, "weight": 1, "backward": 2}
PASSES = ("forward", "backward", "weight")


@dataclass(frozen=True)
class Bubble:
    """Waiting time, added up over ranks.

    The time meant runs from the first pass of any rank to the last pass of any rank. So even
    zero-bubble schedules keep a bubble: (p-1) passes until the first micro-batch is at the last
    rank. Their papers leave it out, as ranks that begin late end late and may begin the next step
    at different times.

    Attributes:
        idle_of_total: waiting / (working + waiting), from 0 to 1.
        idle_of_ideal: waiting / working, from 0 upwards.
    """

    idle_of_total: float
    idle_of_ideal: float


def bubble(plan: Plan) -> Bubble | None:
    """The bubble of a plan whose stages all take equally long; None without a pipeline.

    For gpipe (so for mp) and 1f1b a formula: idle of ideal (p-1)/m (arXiv:2104.04473, section
    2.2.1). For schedules with two stages a rank it is taken from the planned order with passes of
    `UNITS` length. With at least p micro-batches that is (p-1)/(2m) for interleaved and loopedbfs,
    the formula of section 2.2.2, and (p-1)/(6m) for zb; with 2p also for zbv and dualpipev. torch
    leaves the whole backward pass of the first stage to its weight pass, which changes none of it.
    """
    p, m = plan.pp, plan.micro_batches
    if p == 1:
        return None
    if plan.schedule in ONE_STAGE_A_RANK:
        return _bubble(p - 1, m)
    # Once the pipeline is full, more micro-batches add work but no waiting.
    idle = _planned_idle(plan.schedule, p, min(m, 2 * p))
    return _bubble(idle, 2 * m * p * (UNITS["forward"] + UNITS["backward"]))


@functools.lru_cache(maxsize=1024)
def _planned_idle(schedule: str, ranks: int, micro_batches: int) -> float:
    """Waiting time over all ranks, in forward passes of one stage."""
    slots = [
        slot for rank in planned(orders(schedule, ranks, micro_batches), UNITS) for slot in rank
    ]
    return ranks * max(slot.end for slot in slots) - sum(slot.end - slot.start for slot in slots)


def measured_bubble(plan: Plan, steps: Sequence[Step]) -> Bubble | None:
    """The bubble of one step that ran.

    Args:
        plan: what ran.
        steps: the same step of each rank, on clocks that agree.

    Returns:
        None without a pipeline, and where a rank has no passes or no time at which it began, or
        the passes took no time that the clock could see.
    """
    if plan.pp == 1 or not steps:
        return None
    working, starts, ends = 0.0, [], []
    for step in steps:
        passes = sorted((s.start, s.end) for s in step.spans if s.kind in PASSES)
        if step.begin is None or not passes:
            return None
        working += _covered(passes)
        starts.append(step.begin + passes[0][0])
        ends.append(step.begin + max(end for _, end in passes))
    if not working:
        return None
    return _bubble(len(steps) * (max(ends) - min(starts)) - working, working)


def _covered(intervals: Iterable[tuple[float, float]]) -> float:
    """The time in at least one of the intervals, which are in the order of their starts."""
    covered, reached = 0.0, float("-inf")
    for start, end in intervals:
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def _bubble(idle: float, working: float) -> Bubble:
    return Bubble(idle / (idle + working), idle / working)
