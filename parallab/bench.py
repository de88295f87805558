"""What this machine does, and what parallab's meters cost on it: measured ratios, not promises."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from parallab.cluster import Cluster, engine
from parallab.cluster.places import Device
from parallab.models.spec import Model
from parallab.plan import Plan

MODEL = Model("micro")
Figures = dict[str, float]


@dataclass(frozen=True)
class Bench:
    """Measured figures of one machine, of its slowest rank.

    Attributes:
        start_seconds: until all engines were ready.
        step_seconds: a step with nothing recorded ("plain"), with communication, time and peaks
            ("recorded"), and with memory by category too ("traced").
        collective_bytes_per_second: payload over duration, by operation.
        flops: of one matrix product on every rank at once, by precision.
    """

    ranks: int
    device: str
    rounds: int
    start_seconds: float
    step_seconds: Figures
    collective_bytes_per_second: Figures
    flops: Figures

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    def __str__(self) -> str:
        plain = self.step_seconds["plain"]
        steps = (
            f"{seconds * 1e3:,.1f} ms {kind}"
            + (f" (× {seconds / plain:.2f})" if kind != "plain" else "")
            for kind, seconds in self.step_seconds.items()
        )
        sent = (
            f"{op.replace('_', '-')} {rate / 1e9:,.2f} GB/s"
            for op, rate in self.collective_bytes_per_second.items()
        )
        rates = (f"{name} {rate / 1e9:,.0f} GFLOP/s" for name, rate in self.flops.items())
        return "\n".join((
            f"Measured on {self.ranks} ranks ({self.device}), medians of {self.rounds}",
            f"start-up     {self.start_seconds:.1f} s until the engines are ready",
            f"ddp, {MODEL.name}   {', '.join(steps)}",
            f"collectives  {', '.join(sent)} of payload",
            f"matrices     {', '.join(rates)} on each rank while all compute",
        ))  # fmt: skip


def bench(ranks: int = 4, device: Device = "auto", rounds: int = 20) -> Bench:
    """Starts engines, measures, and ends them.

    Raises:
        PlanError: this machine has no room for so many; ClusterError: an engine did not start.
    """
    began = time.monotonic()
    with Cluster(ranks, device) as cluster:
        return measure(cluster, rounds, time.monotonic() - began)


def measure(cluster: Cluster, rounds: int, start_seconds: float) -> Bench:
    """Measures on engines that run."""
    plan = Plan("ddp", cluster.n, batch=2 * cluster.n, seq=128)
    cluster.run(MODEL, plan, steps=2)  # its trainers stay
    found = cluster.view.apply_sync(engine.bench, rounds)
    parts = {
        part: {name: worst(rank[part][name] for rank in found) for name in found[0][part]}
        for part, worst in (
            ("step_seconds", max), ("collective_bytes_per_second", min), ("flops", min)
        )
    }  # fmt: skip
    cluster.release()
    return Bench(cluster.n, cluster.device, rounds, start_seconds, **parts)
