"""The plans of the scale panel: one strategy on more and more devices, as much work for each."""

from __future__ import annotations

from dataclasses import dataclass

from parallab.errors import PlanError
from parallab.hardware import Hardware
from parallab.models.spec import Model
from parallab.panels.theory import predicted
from parallab.plan import Plan, Precision, Recompute
from parallab.plots.scale import Point
from parallab.predict.report import Kernels
from parallab.predict.time import step_time
from parallab.report import Report

STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "pp", "tp", "dp+pp", "3d")
DEVICES = tuple(2**i for i in range(3, 13))
MOST_STAGES, MOST_SLICES = 8, 8


@dataclass(frozen=True)
class Work:
    """What every device has to do, however many there are.

    Attributes:
        device_batch: sequences for each device; the batch grows with them.
    """

    model: Model
    device_batch: int
    seq: int
    precision: Precision
    recompute: Recompute


def plan_at(work: Work, strategy: str, devices: int, gpus_per_node: int = 8) -> Plan:
    """The strategy on so many devices.

    A pipeline passes on single sequences. Compositions keep their tensor axis inside a node and
    their pipeline short, and the data axis takes the rest.

    Raises:
        PlanError: this strategy cannot use so many.
    """
    degrees = _degrees(work.model, strategy, devices, gpus_per_node)
    split = devices // degrees.get("dp", 1)
    if strategy in ("ddp", "zero1", "zero2", "zero3"):
        micro_batches = 1
    else:
        # What the ranks of one replica have to do together, a sequence at a time.
        micro_batches = split * work.device_batch
    plan = Plan(
        strategy, devices, dp=degrees.get("dp"), pp=degrees.get("pp"), tp=degrees.get("tp"),
        batch=devices * work.device_batch, seq=work.seq,
        micro_batches=micro_batches, precision=work.precision, recompute=work.recompute,
    )  # fmt: skip
    plan.check(work.model)
    return plan


def _degrees(model: Model, strategy: str, devices: int, gpus_per_node: int) -> dict[str, int]:
    if strategy == "dp+pp":
        pp = _power_of_two(min(MOST_STAGES, model.layers, devices // 2))
        return {"dp": devices // pp, "pp": pp}
    if strategy == "3d":
        sizes = (model.heads, model.kv_heads, model.ffn)
        most = min(MOST_SLICES, gpus_per_node, devices // 4)
        fits = [t for t in (1, 2, 4, 8) if t <= most and not any(n % t for n in sizes)]
        tp = 1 if model.experts or model.kv_rank else max(fits, default=1)
        pp = _power_of_two(min(MOST_STAGES, model.layers, devices // tp // 2))
        return {"dp": devices // tp // pp, "pp": pp, "tp": tp}
    return {} if strategy in ("pp", "tp") else {"dp": devices}


def _power_of_two(most: int) -> int:
    return 1 << max(0, most.bit_length() - 1)


def point(work: Work, plan: Plan, hardware: Hardware, kernels: Kernels) -> Point:
    """What a plan costs, predicted, and how long its step takes, estimated."""
    nodes = -(-plan.devices // hardware.gpus_per_node)
    there = Hardware(
        hardware.gpu, nodes, hardware.gpus_per_node, interconnect=hardware.interconnect,
        link=hardware.link, headroom=hardware.headroom,
    )  # fmt: skip
    found = point_of(predicted(work.model, plan, kernels))
    found.step_seconds = step_time(work.model, plan, there).seconds
    return found


def point_of(report: Report) -> Point:
    """The bytes of a Report."""
    sent: dict[str, int] = {}
    for (_, axis), row in report.communication().items():
        sent[axis] = sent.get(axis, 0) + row["wire_bytes"]
    return Point(report.plan.devices, report.peak_bytes, sent)


def curves(
    work: Work, hardware: Hardware, kernels: Kernels, strategies: tuple[str, ...] = STRATEGIES
) -> tuple[dict[str, list[Point]], dict[str, str]]:
    """Every strategy on every number of devices, as far as it goes.

    Returns:
        Strategy -> its points; and strategy -> why it goes no further.
    """
    found: dict[str, list[Point]] = {}
    ends: dict[str, str] = {}
    for strategy in strategies:
        points = []
        for devices in DEVICES:
            try:
                plan = plan_at(work, strategy, devices, hardware.gpus_per_node)
                points.append(point(work, plan, hardware, kernels))
            except PlanError as error:
                ends[strategy] = str(error)
                break
        found[strategy] = points
    return found, ends
