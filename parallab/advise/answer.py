"""How to split a model over some hardware, and why.

Two answers: the field's rule of thumb, decided from computed bytes, and a search over every plan,
ranked by estimated time among those that fit. Memory is predicted (`parallab.predict`), time is an
estimate (`parallab.predict.time`) that is good for comparing plans.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from parallab.advise.advice import HERE, Advice, Option, Rejection, Rule, describe
from parallab.advise.candidates import (
    Candidate,
    Found,
    Need,
    Task,
    search,
    smallest_need,
    unlike_ranks,
)
from parallab.datasheets import GPUS, Gpu, Link, Network
from parallab.errors import HardwareError, PlanError
from parallab.hardware import MOST, Hardware
from parallab.models.spec import Model, count
from parallab.plan import Optimizer, Plan, Precision
from parallab.predict.peaks import peak_memory
from parallab.units import gib, percent

# A batch of about a million tokens, as large language models are trained with (Brown et al.,
# arXiv:2005.14165, table 2.1: 0.5 M for the smallest, 1 to 3 M for those of 2.7 B and more).
TOKENS = 2**20
SEQ = 4096


def advise(
    model: Model | str,
    hardware: Hardware | None = None,
    *,
    gpu: str | Gpu | None = None,
    nodes: int = 1,
    gpus_per_node: int = 8,
    interconnect: str | float | Network = "fast",
    link: str | Link | None = None,
    devices: int | None = None,
    free_bytes: int | Sequence[int] | None = None,
    headroom: float = 0.1,
    batch: int | None = None,
    seq: int | None = None,
    precision: Precision | None = None,
    optimizer: Optimizer = "adamw",
    limit: int = 10,
) -> Advice:
    """Which strategy for this model on this hardware, and why.

    >>> advice = advise("llama-3.1-8b", gpu="h100")
    >>> advice.rule.strategies
    ('pp', 'zero3', 'tp')

    Args:
        model: a Model, or a preset's name.
        hardware: what it is to run on; or what describes it:
        gpu, nodes, gpus_per_node, interconnect, link, headroom: see `Hardware`.
        devices: instead of a GPU: so many ranks on this machine, whose speed is not known.
        free_bytes: what is free of each; must be given with `devices`. Ranks that share a
            machine's memory have a part of it each.
        batch: sequences per step over all GPUs; about a million tokens unless given, as many for
            each GPU. On this machine four for each rank.
        seq: tokens per sequence; 4096, on this machine 128, or as many as the model has.
        precision: bf16; on this machine fp32.
        limit: how many plans to name.

    Raises:
        HardwareError, ModelError, PlanError: something given cannot be.
    """
    model = Model(model) if isinstance(model, str) else model
    _check_limit(limit)
    if sum(given is not None for given in (hardware, gpu, devices)) > 1:
        raise HardwareError(
            "Give one of hardware, a gpu (with nodes and gpus_per_node), and devices (ranks on "
            "this machine)."
        )
    if gpu is not None:
        hardware = Hardware(
            gpu, nodes, gpus_per_node, interconnect=interconnect, link=link,
            free_bytes=free_bytes, headroom=headroom,
        )  # fmt: skip
    elif hardware is None:
        hardware = _this_machine(devices, free_bytes, headroom)
    here = hardware.gpu.name == HERE
    seq = min(model.context, 128 if here else SEQ) if seq is None else seq
    batch = _usual_batch(hardware, seq, here) if batch is None else batch
    precision = precision or ("fp32" if here else "bf16")
    one = Plan("single", batch=batch, seq=seq, precision=precision, optimizer=optimizer)
    one.check(model)
    task = Task(model, batch, seq, precision, optimizer)
    need = _need_of(model, "cpu" if here else "cuda")
    found = search(task, hardware, need, limit)
    return Advice(
        model=model, hardware=hardware, batch=batch, seq=seq, precision=precision,
        optimizer=optimizer, rule=_rule(task, hardware, need),
        options=tuple(_option(model, hardware, need, c, found) for c in found.fitting[:limit]),
        slower=tuple(_option(model, hardware, need, c, found) for c in _others(found, limit)),
        rejections=tuple(
            Rejection(name, c.plan, c.need_bytes, c.room_bytes)
            for name, c in sorted(found.rejected.items(), key=lambda item: item[1].need_bytes)
        ),
        impossible=tuple(found.impossible),
        remedy=None if found.fitting else _remedy(task, hardware, need, found),
        considered=found.plans,
    )  # fmt: skip


def _check_limit(limit: object) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise PlanError(f"limit={limit!r} must be a whole number from 1 up.")


def _this_machine(
    devices: int | None, free_bytes: int | Sequence[int] | None, headroom: float
) -> Hardware:
    """Ranks on this machine: no data sheet is known, so the speeds are those of a laptop's core."""
    if devices is None or free_bytes is None:
        raise HardwareError(
            f"advise needs a GPU, one of {', '.join(GPUS)}; or devices and free_bytes for ranks on "
            "this machine."
        )
    least = free_bytes if isinstance(free_bytes, int) else max(free_bytes, default=0)
    gpu = Gpu(HERE, max(1, least), 10e9, 50e9, 50e9)
    return Hardware(
        gpu, 1, devices, link=Link("memory", 2e9, 50e-6, "shared memory"), free_bytes=free_bytes,
        headroom=headroom,
    )  # fmt: skip


def _usual_batch(hardware: Hardware, seq: int, here: bool) -> int:
    """Sequences: a power of two for each device, so that they divide over any of its divisors."""
    each = 4 if here else 2 ** max(0, round(math.log2(TOKENS / seq / hardware.devices)))
    return each * hardware.devices


def _rule(task: Task, hardware: Hardware, need: Need) -> Rule:
    """The field's table, its rows decided by what one GPU would have to hold."""
    single = Plan(
        "single", batch=1, seq=task.seq, precision=task.precision, optimizer=task.optimizer
    )
    alone, room = need(single, 0), min(hardware.room_bytes)
    name, largest = _largest_layer(task)
    fits = alone <= room
    each = "rank" if hardware.gpu.name == HERE else "GPU"
    bytes_ = (
        f"With one sequence and nothing recomputed a {each} would have to hold {gib(alone)}, and "
        f"{gib(room)} is there to fill"
    )
    if hardware.devices == 1:
        if fits:
            return Rule("One GPU, and the model fits", ("single",), f"{bytes_}.")
        return Rule(
            "One GPU, and the model does not fit", (),
            f"{bytes_}: it takes more GPUs, or what parallab does not model (offloading, 8-bit "
            "optimizers, adapters).",
        )  # fmt: skip
    if hardware.nodes > 1:
        also = "; as it fits, DDP works too." if fits else "."
        if hardware.fast:
            return Rule(
                "Several nodes with a fast link: ZeRO, or 3D", ("zero3", "3d"),
                f"{bytes_}{also} ZeRO needs no change to the model; 3D sends less.",
            )  # fmt: skip
        return Rule(
            "Several nodes with a slow link: 3D or ZeRO, with the tensor axis inside a node",
            ("3d", "dp+pp", "zero3"),
            f"{bytes_}{also} Between nodes a GPU sends "
            f"{hardware.between.bytes_per_second / 1e9:.2g} GB/s, inside one "
            f"{hardware.link.bytes_per_second / 1e9:.4g} GB/s: only a pipeline's activations or "
            "one reduction a step should cross.",
        )  # fmt: skip
    if fits:
        return Rule("One node, and the model fits on one GPU: DDP, or ZeRO",
                    ("ddp", "zero1", "zero2", "zero3"), f"{bytes_}.")  # fmt: skip
    if largest <= room:
        return Rule(
            "One node, and the model does not fit on one GPU: pipeline, ZeRO or tensor",
            ("pp", "zero3", "tp"),
            f"{bytes_}. Its largest layer, {name}, fits: {gib(largest)} of weights, gradients "
            "and optimizer state.",
        )  # fmt: skip
    return Rule(
        "One node, and the largest layer does not fit on one GPU: tensor, or ZeRO",
        ("tp", "zero3"),
        f"{bytes_}. Weights, gradients and optimizer state of {name} alone are "
        f"{gib(largest)}: no pipeline stage can hold them.",
    )  # fmt: skip


def _largest_layer(task: Task) -> tuple[str, int]:
    """What a stage must at least hold: name, and bytes of model states."""
    model = task.model
    layers = {"the embedding": model.embedding_shapes(), "the head": model.head_shapes()}
    layers |= {f"block {layer}": model.block_shapes(layer) for layer in model.block_kinds()}
    # Weight, gradient and master copy, and two moments: ZeRO, arXiv:1910.02054, section 3.1.
    each = 8 + (8 if task.optimizer == "adamw" else 0)
    name = max(layers, key=lambda layer: count(layers[layer]))
    return name, each * count(layers[name])


def _others(found: Found, limit: int) -> list[Candidate]:
    """The best plan of each family that is not among the first."""
    seen = {candidate.shape.family for candidate in found.fitting[:limit]}
    others = []
    for candidate in found.fitting[limit:]:
        if candidate.shape.family not in seen:
            seen.add(candidate.shape.family)
            others.append(candidate)
    return others


def _option(
    model: Model, hardware: Hardware, need: Need, candidate: Candidate, found: Found
) -> Option:
    """With what speaks for it and against it."""
    plan, step, reasons = candidate.plan, candidate.step, []
    slower = step.seconds / found.fitting[0].step.seconds - 1
    if slower >= 0.95:
        times = 1 + slower
        reasons.append(f"takes {times:.{0 if times >= 9.5 else 1}f} times as long as the first")
    elif slower >= 0.02:
        reasons.append(f"{percent(slower)} slower than the first")
    waits = {
        part: seconds / step.seconds
        for part, seconds in step.parts().items()
        if part != "computing" and seconds >= 0.02 * step.seconds
    }
    if waits:
        parts = [f"{part} {percent(share)}" for part, share in waits.items()]
        reasons.append(f"shares of the step: {', '.join(parts)}")
    if plan.recompute == "full":
        keeping = Plan.from_dict({**plan.to_dict(), "recompute": "none"})
        ranks = unlike_ranks(model, plan.pp, plan.schedule)
        more = max(need(keeping, rank) for rank in ranks)
        reasons.append(f"without recomputing it would need {gib(more)}")
    if plan.tp > 1 and hardware.nodes > 1:
        inside = hardware.ring(1, plan.tp).nodes == 1
        reasons.append(f"the tensor axis {'stays inside a node' if inside else 'crosses nodes'}")
    if not reasons:
        reasons.append("next to nothing is waited for")
    return Option(
        candidate.shape.family, plan, candidate.need_bytes, candidate.room_bytes, step,
        "; ".join(reasons),
    )  # fmt: skip


def _remedy(task: Task, hardware: Hardware, need: Need, found: Found) -> str:
    """What would help where nothing fits: more nodes of the same kind, or larger GPUs."""
    smallest = min(found.rejected.values(), key=lambda c: c.need_bytes, default=None)
    if smallest is None:
        return "No plan is possible: the batch is too small to divide, or the degrees do not fit."
    least, room = gib(smallest.need_bytes), gib(smallest.room_bytes)
    parts = [
        f"Nothing fits: the least that a GPU would have to hold is {least}, and {room} is there"
    ]
    nodes = 2 * hardware.nodes
    while nodes * hardware.gpus_per_node <= MOST:
        more = hardware.with_nodes(nodes)
        batch = -(-task.batch // more.devices) * more.devices
        wider = Task(task.model, batch, task.seq, task.precision, task.optimizer)
        found_there = smallest_need(wider, more, need)
        if found_there is not None and found_there.fits:
            parts.append(
                f"{more.devices} such GPUs would do: {found_there.shape.family} with "
                f"{describe(found_there.plan)} needs {gib(found_there.need_bytes)}"
            )
            break
        nodes *= 2
    usable = 1 - hardware.headroom
    larger = [gpu for gpu in GPUS.values() if gpu.memory_bytes * usable >= smallest.need_bytes]
    if larger and hardware.gpu.name in GPUS:
        gpu = min(larger, key=lambda gpu: gpu.memory_bytes)
        parts.append(f"{hardware.devices} × {gpu} would do")
    return ". ".join(parts) + "."


def _need_of(model: Model, kernels: str) -> Need:
    """The predicted peak of a pipeline rank: of its first rank, which holds most, since what does
    not divide is dealt out from the front.
    """

    @functools.cache
    def need(plan: Plan, pp: int) -> int:
        return peak_memory(model, plan, pp * plan.dp * plan.tp, kernels).peak_bytes

    return need
