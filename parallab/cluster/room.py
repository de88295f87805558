"""How much memory there is, and whether a model and its batch can fit into it."""

from __future__ import annotations

from pathlib import Path

import psutil

from parallab.errors import PlanError
from parallab.models.spec import PRESETS, Model
from parallab.plan import Plan
from parallab.predict.memory import model_states
from parallab.predict.parts import blocks_of_stage, held_stages
from parallab.stages import stage_count
from parallab.units import gib

# What an engine and its nanny take in a small run, beyond the torch that they share.
ENGINE_BYTES = 300 * 2**20
CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Memory that new processes could take: the machine's, or this container's where it is less."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = int((CGROUP / "memory.max").read_text())  # "max" where there is no limit
        used = int((CGROUP / "memory.current").read_text())
        cached = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        return min(free, limit - used + int(cached.get("inactive_file", 0)))
    except (OSError, ValueError):
        return free


def check_fits(model: Model, plan: Plan, free_bytes: int, shared: bool) -> None:
    """Refuses what cannot fit: states and batch alone are more than there is memory.

    Args:
        free_bytes: memory for all ranks where they share it, otherwise for each.

    Raises:
        PlanError: with the numbers, and with what should fit.
    """
    need = needed_bytes(model, plan, shared)
    if need <= free_bytes:
        return
    ranks = f"all {plan.devices} ranks" if shared and plan.devices > 1 else "a rank"
    where = "on this machine" if shared else "on its GPU"
    raise PlanError(
        f"{model.name} with {plan.strategy} needs at least {gib(need)} for the weights, gradients, "
        f"optimizer state and batch of {ranks}, and there are {gib(free_bytes)} {where}; "
        f"{_remedy(model, plan, free_bytes, shared)}."
    )


def needed_bytes(model: Model, plan: Plan, shared: bool) -> int:
    """The least that all ranks take together, or the rank that takes most."""
    ranks = [
        sum(model_states(model, plan, rank).values()) + batch_bytes(model, plan, rank)
        for rank in range(plan.devices)
    ]
    return sum(ranks) if shared else max(ranks)


def batch_bytes(model: Model, plan: Plan, rank: int) -> int:
    """The least that a rank's batch takes: ids, the inputs of its blocks for one micro-batch, and,
    where it holds the head, logits and their gradient.
    """
    ids = 2 * plan.batch * (plan.seq + 1) * 8
    tokens = plan.micro_batch * plan.seq
    stages = held_stages(plan, plan.coordinates(rank)["pp"])
    blocks = sum(blocks_of_stage(model, plan, stage) for stage in stages)
    inputs = blocks * tokens * model.hidden
    if plan.sequence_parallel:
        inputs //= plan.tp
    # Classic DataParallel gathers every rank's logits on rank 0.
    gathered = plan.dp if plan.data == "dp" and rank == 0 else 1
    head = stage_count(plan.pp, plan.schedule) - 1 in stages
    logits = 2 * gathered * tokens * model.vocab // plan.tp if head else 0
    return ids + (inputs + logits) * plan.element_bytes


# A remedy that only just holds states and batch would be none: the rest of a step comes on top.
_HEADROOM = 0.7


def _remedy(model: Model, plan: Plan, free_bytes: int, shared: bool) -> str:
    """What should fit: the same model sharded, a smaller batch, or a smaller model."""
    room = _HEADROOM * free_bytes
    sharded = _sharded(plan)
    if sharded is not None:
        need = needed_bytes(model, sharded, shared)
        if need <= room:
            return f"zero3 needs {gib(need)} and should fit"
    least = Plan.from_dict({**plan.to_dict(), "batch": plan.dp * plan.micro_batches})
    if needed_bytes(model, least, shared) <= room:
        return "a smaller batch or more micro-batches should fit"
    smaller = [
        other
        for other in map(Model, PRESETS)
        if _goes_with(other, plan) and needed_bytes(other, plan, shared) <= room
    ]
    if not smaller:
        return "no preset is small enough"
    best = max(smaller, key=lambda m: m.parameters)
    return f"{best} should fit"


def _goes_with(model: Model, plan: Plan) -> bool:
    try:
        plan.check(model)
    except PlanError:
        return False
    return True


def _sharded(plan: Plan) -> Plan | None:
    """ZeRO-3 on the same devices and batch; None where that is no other plan, or none at all."""
    if plan.devices == 1 or plan.data == "zero3" or plan.batch % plan.devices:
        return None
    parts = plan.batch // plan.devices
    return Plan(
        "zero3", plan.devices, batch=plan.batch, seq=plan.seq, precision=plan.precision,
        micro_batches=plan.micro_batches if parts % plan.micro_batches == 0 else 1,
        recompute=plan.recompute, optimizer=plan.optimizer,
    )  # fmt: skip
