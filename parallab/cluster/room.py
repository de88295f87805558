"""How much memory there is, and whether a model and its batch can fit into it."""

from __future__ import annotations

from pathlib import Path

import psutil

from parallab.errors import PlanError
from parallab.plan import Plan
from parallab.predict.memory import model_states
from parallab.spec import PRESETS, Model

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
    """The least that a rank's batch takes: ids, each block's input, logits and their gradient."""
    ids = 2 * plan.batch * (plan.seq + 1) * 8
    tokens = plan.micro_batch * plan.seq
    # Classic DataParallel gathers every rank's logits on rank 0.
    gathered = plan.dp if plan.data == "dp" and rank == 0 else 1
    logits = 2 * gathered * tokens * model.vocab * plan.element_bytes
    return ids + logits + model.layers * tokens * model.hidden * plan.element_bytes


def gib(count: float) -> str:
    """Bytes for a sentence."""
    return f"{count / 2**30:,.1f} GiB"


# A remedy that only just holds states and batch would be none: the rest of a step comes on top.
_HEADROOM = 0.7


def _remedy(model: Model, plan: Plan, free_bytes: int, shared: bool) -> str:
    """What should fit: the same model sharded, a smaller batch, or a smaller model."""
    room = _HEADROOM * free_bytes
    if plan.devices > 1 and plan.data != "zero3":
        sharded = Plan.from_dict({**plan.to_dict(), "strategy": "zero3"})
        need = needed_bytes(model, sharded, shared)
        if need <= room:
            return f"zero3 needs {gib(need)} and should fit"
    least = Plan.from_dict({**plan.to_dict(), "batch": plan.dp * plan.micro_batches})
    if needed_bytes(model, least, shared) <= room:
        return "a smaller batch or more micro-batches should fit"
    smaller = [Model(name) for name in PRESETS]
    smaller = [
        m for m in smaller if m.context >= plan.seq and needed_bytes(m, plan, shared) <= room
    ]
    if not smaller:
        return "no preset is small enough"
    best = max(smaller, key=lambda m: m.parameters)
    return f"{best} should fit"
