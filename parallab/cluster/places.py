"""Where ranks compute: the free GPUs of this machine, or its CPU cores."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

import psutil

from parallab.cluster import gpus, leases, room
from parallab.cluster.boot import LOOPBACK
from parallab.errors import PlanError
from parallab.units import gib

Kind = Literal["cpu", "cuda"]
Device = Literal["auto"] | Kind
MAX_ENGINES = 1024


@dataclass
class Place:
    """One rank's place.

    Attributes:
        kind: "cpu" or "cuda".
        environment: variables that its engine starts with.
        lease: what keeps others off its GPU.
    """

    kind: Kind
    environment: dict[str, str] = field(default_factory=dict)
    lease: leases.Lease | None = None

    def release(self) -> None:
        """Lets others have the GPU."""
        if self.lease is not None:
            self.lease.release()


def choose(n: object, device: Device) -> list[Place]:
    """Takes n places.

    Args:
        n: how many ranks.
        device: "auto" takes GPUs where this machine has any, and otherwise the CPU.

    Raises:
        PlanError: there is no room for so many, with the number that there is room for.
    """
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MAX_ENGINES:
        raise PlanError(f"n={n!r} must be a whole number of engines from 1 to {MAX_ENGINES:,}.")
    if device not in ("auto", "cpu", "cuda"):
        raise PlanError(f"device={device!r} is not one of auto, cpu, cuda.")
    present = [] if device == "cpu" else gpus.present()
    if present:
        return _on_gpus(n, present)
    if device == "cuda":
        raise PlanError(
            "device='cuda' needs a GPU, and torch can use none on this machine; "
            "device='cpu' runs the same plans on CPU engines."
        )
    return _on_cpu(n)


def _on_gpus(n: int, present: list[gpus.Gpu]) -> list[Place]:
    places: list[Place] = []
    for gpu in present:
        if len(places) < n and gpu.free and (lease := leases.take(gpu.uuid)) is not None:
            variables = {"CUDA_VISIBLE_DEVICES": gpu.uuid, **_variables(n)}
            places.append(Place("cuda", variables, lease))
    if len(places) == n:
        return places
    for place in places:
        place.release()
    had = f"{len(present)} GPU{'s' if len(present) > 1 else ''}"
    instead = f"Cluster({len(places)}) or " if places else ""
    raise PlanError(
        f"{n} engines need {n} free GPUs, and of this machine's {had} {len(places)} "
        f"{'is' if len(places) == 1 else 'are'} free ({', '.join(map(str, present))}); "
        f"{instead}Cluster({n}, device='cpu') would work."
    )


def _on_cpu(n: int) -> list[Place]:
    most = room.available_bytes() // room.ENGINE_BYTES
    if n > most:
        raise PlanError(
            f"{n} engines take about {gib(n * room.ENGINE_BYTES)} of memory before the first "
            f"step, and {gib(room.available_bytes())} is free; "
            f"Cluster({max(1, most)}) would work."
        )
    # No GPU is visible to them, so that nothing is allocated on one by accident.
    return [Place("cpu", {"CUDA_VISIBLE_DEVICES": "", **_variables(n)}) for _ in range(n)]


def _variables(n: int) -> dict[str, str]:
    """Threads that share the cores fairly; the ranks' own connections stay on loopback."""
    threads = str(max(1, cores() // n))
    interface = loopback()
    return {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
    }


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def loopback() -> str:
    """The name of the loopback interface: lo on Linux, lo0 on macOS."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == LOOPBACK for address in addresses):
            return name
    return "lo"
