"""Whether what a person asks of a cluster can work; nothing has been started when it cannot."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from parallab.cluster import room
from parallab.cluster.pool import Pool
from parallab.errors import CorpusError, ModelError, PlanError
from parallab.models.spec import Model
from parallab.plan import MAX_SEED, Plan, check_both
from parallab.rank.corpus import check_text

MAX_TRACE_EVERY = 1_000_000
MAX_CAP_BYTES = 2**50


@dataclass(frozen=True)
class Options:
    """What a run depends on besides model, plan and steps.

    Attributes:
        seed: of the first weights and of the batches.
        text: absolute path of a text file; None takes Python's own sources.
        trace_every: memory is followed by category on every n-th step.
        cap_bytes: the most that each rank may hold; None for all that there is.
    """

    seed: int
    text: str | None
    trace_every: int
    cap_bytes: tuple[int, ...] | None = None


def check_request(
    pool: Pool,
    model: Model,
    plan: Plan,
    seed: int,
    text: str | None,
    trace_every: int = 5,
    cap_bytes: int | Sequence[int] | None = None,
) -> Options:
    """Holds a plan against the engines, and the options against sense.

    Raises:
        ModelError: the model is none.
        PlanError: the plan does not go with the model or the engines, or a number is absurd.
        CorpusError: the text cannot be read on this machine, where the engines are ours.
    """
    check_both(model, plan)
    if model.why_not_trainable:
        raise ModelError(model.why_not_trainable)
    if plan.devices > pool.n:
        raise PlanError(
            f"This plan needs {plan.devices} devices and the cluster has {pool.n}; "
            f"a plan with devices={pool.n}, or Cluster({plan.devices}), would work."
        )
    _check_number("seed", seed, 0, MAX_SEED)
    _check_number("trace_every", trace_every, 1, MAX_TRACE_EVERY)
    if text is not None:
        if not isinstance(text, str | os.PathLike):
            raise CorpusError(f"text={text!r} is not the path of a text file; None needs none.")
        path = Path(text).expanduser().absolute()  # engines may have another directory
        if pool.owned:
            check_text(str(path), plan.seq)
        text = str(path)
    return Options(seed, text, trace_every, _check_caps(cap_bytes, plan.devices, pool.n))


def check_room(pool: Pool, model: Model, plan: Plan, held_bytes: int) -> int:
    """Holds a model's states against the memory of this machine or of its GPUs.

    The memory of other hosts is not known here, so plans for them pass.

    Args:
        held_bytes: what the last run left, which goes before the next one starts.

    Returns:
        Bytes that the states of this plan take.

    Raises:
        PlanError: they do not fit.
    """
    shared = pool.kind == "cpu"
    here = pool.hosts in ([], [socket.gethostname()])  # none while engines are being restarted
    if not shared:
        known = [f["gpu_bytes"] for r, f in pool.facts.items() if r < plan.devices]
        free = min(known, default=None)
    else:
        free = room.available_bytes() + held_bytes if here else None
    if free is not None:
        room.check_fits(model, plan, free, shared)
    return room.needed_bytes(model, plan, shared)


def _check_caps(
    caps: int | Sequence[int] | None, devices: int, engines: int
) -> tuple[int, ...] | None:
    """One cap for each rank of the plan, from one for all, or from one for each engine."""
    if caps is None:
        return None
    each = list(caps) if isinstance(caps, Sequence) else [caps] * engines
    if len(each) != engines:
        raise PlanError(
            f"cap_bytes names {len(each)} engines, and there are {engines}; give one number for "
            "all, or one for each."
        )
    for cap in each:
        _check_number("cap_bytes", cap, 1, MAX_CAP_BYTES)
    return tuple(each[:devices])


def _check_number(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise PlanError(f"{name}={value!r} must be a whole number from {least} to {most:,}.")
