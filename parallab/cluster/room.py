"""How much memory there is, and whether a model's states fit into it."""

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
    """Refuses a model whose states alone are more than there is memory; activations come on top.

    Args:
        free_bytes: memory for all ranks where they share it, otherwise for each.

    Raises:
        PlanError: with the numbers, and with what would fit.
    """
    need = needed_bytes(model, plan, shared)
    if need <= free_bytes:
        return
    ranks = f"all {plan.devices} ranks" if shared and plan.devices > 1 else "a rank"
    where = "on this machine" if shared else "on its GPU"
    raise PlanError(
        f"{model.name} with {plan.strategy} needs {gib(need)} for the weights, gradients and "
        f"optimizer state of {ranks}, and there are {gib(free_bytes)} {where}; "
        f"{_remedy(model, plan, free_bytes, shared)}."
    )


def needed_bytes(model: Model, plan: Plan, shared: bool) -> int:
    """Bytes of model states: of all ranks together, or of the rank with most."""
    ranks = [sum(model_states(model, plan, rank).values()) for rank in range(plan.devices)]
    return sum(ranks) if shared else max(ranks)


def gib(count: float) -> str:
    """Bytes for a sentence."""
    return f"{count / 2**30:,.1f} GiB"


def _remedy(model: Model, plan: Plan, free_bytes: int, shared: bool) -> str:
    """What would fit: the same model sharded, or the largest preset with this plan."""
    if plan.devices > 1 and plan.data != "zero3":
        data = plan.to_dict()
        sharded = Plan.from_dict({**data, "strategy": "zero3"})
        if needed_bytes(model, sharded, shared) <= free_bytes:
            return f"zero3 needs {gib(needed_bytes(model, sharded, shared))} and would work"
    smaller = [Model(name) for name in PRESETS]
    smaller = [m for m in smaller if needed_bytes(m, plan, shared) <= free_bytes]
    if not smaller:
        return "no preset is small enough"
    best = max(smaller, key=lambda m: m.parameters)
    return f"{best} would work"
