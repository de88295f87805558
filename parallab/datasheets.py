"""GPUs and links by name, with the figures of their public data sheets.

Bytes, bytes per second and operations per second. A card sold as 80 GB leaves 79.2 GiB (85.0 GB)
to programs: `memory_bytes` is what torch reports as the device's total, and it is shown in GiB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from parallab.errors import HardwareError
from parallab.units import GIB, gib

_MODEL = re.compile(r"[a-z]*\d+[a-z]*")
T = TypeVar("T")


def check_number(label: str, value: object, least: float | None = None, most: float = 1e30) -> None:
    """Refuses what is no number from `least` to `most`, above 0 where no least is given.

    Raises:
        HardwareError: it is not.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        enough = value > 0 if least is None else value >= least
        if enough and value <= most:
            return
    allowed = "above 0" if least is None else f"from {least:g} to {most:g}"
    raise HardwareError(f"{label}={value!r} must be a number {allowed}.")


def named(kind: str, name: object, known: Mapping[str, T]) -> T:
    """The entry called `name`.

    Raises:
        HardwareError: there is none.
    """
    if not isinstance(name, str) or name not in known:
        raise HardwareError(
            f"There is no {kind} called {name!r}. Choose one of {', '.join(known)}; or describe "
            "your own."
        )
    return known[name]


@dataclass(frozen=True)
class Link:
    """What carries bytes between GPUs.

    Attributes:
        bytes_per_second: what one GPU can send, in one direction, while all others send too.
        latency_seconds: what one step of a ring takes beyond its bytes.
    """

    name: str
    bytes_per_second: float
    latency_seconds: float
    title: str = ""

    def __post_init__(self) -> None:
        check_number(f"{self.name}'s bytes_per_second", self.bytes_per_second)
        check_number(f"{self.name}'s latency_seconds", self.latency_seconds, 0, 1)

    def __str__(self) -> str:
        speed = self.bytes_per_second / 1e9
        return f"{self.title or self.name} ({speed:,.{1 if speed >= 1 else 2}f} GB/s per GPU)"


# Latencies are those that NCCL counts with for a ring of its Simple protocol (src/graph/tuning.cc,
# version 2.2x): 3.4 us a step over NVLink, 5.7 over PCI, 14 over a network. Bandwidths are the
# vendors', halved where they add both directions.
_NVLINK, _PCI, _NETWORK = 3.4e-6, 5.7e-6, 14e-6
LINKS: dict[str, Link] = {
    link.name: link
    for link in (
        Link("nvlink-2", 150e9, _NVLINK, "NVLink 2"),  # V100 data sheet: 300 GB/s both ways
        Link("nvlink-3", 300e9, _NVLINK, "NVLink 3"),  # A100 data sheet: 600 GB/s
        Link("nvlink-4", 450e9, _NVLINK, "NVLink 4"),  # H100 data sheet: 900 GB/s
        Link("nvlink-5", 900e9, _NVLINK, "NVLink 5"),  # B200 data sheet: 1,800 GB/s
        # Between dies of different packages 50 GB/s each way (Frontier user guide), a ring's limit.
        Link("infinity-fabric-2", 50e9, _PCI, "Infinity Fabric"),
        # Seven links of 64 GB/s each way (MI300X data sheet).
        Link("infinity-fabric-3", 448e9, _PCI, "Infinity Fabric"),
        Link("pcie-3", 15.75e9, _PCI, "PCIe 3.0 x16"),  # 8 GT/s x 16 lanes x 128/130
        Link("pcie-4", 31.5e9, _PCI, "PCIe 4.0 x16"),
        Link("pcie-5", 63e9, _PCI, "PCIe 5.0 x16"),
    )
}


@dataclass(frozen=True)
class Network:
    """What leaves a node.

    Attributes:
        bits_per_second: of one GPU's own adapter, or of the node where its GPUs share one.
        shared: whether they share one.
    """

    name: str
    bits_per_second: float
    shared: bool
    title: str
    latency_seconds: float = _NETWORK

    def link(self, gpus_per_node: int) -> Link:
        """One GPU's share."""
        sharing = gpus_per_node if self.shared else 1
        return Link(self.name, self.bits_per_second / 8 / sharing, self.latency_seconds, self.title)


NETWORKS: dict[str, Network] = {
    network.name: network
    for network in (
        Network("fast", 400e9, False, "400 Gb/s InfiniBand for each GPU"),
        Network("slow", 25e9, True, "25 Gb/s Ethernet for each node"),
        Network("infiniband-200", 200e9, False, "200 Gb/s InfiniBand for each GPU"),
        Network("efa-400", 400e9, True, "400 Gb/s for each node, as AWS p4d"),
        Network("ethernet-100", 100e9, True, "100 Gb/s Ethernet for each node"),
    )
}


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU.

    Attributes:
        memory_bytes: what a program finds as the device's total.
        bytes_per_second: memory bandwidth.
        bf16_flops, fp32_flops: dense operations per second (without sparsity); fp32 is torch's
            default, which leaves TF32 off.
        link: what connects the GPUs of one node.
        source: where the figures are from.
    """

    name: str
    memory_bytes: int
    bytes_per_second: float
    bf16_flops: float
    fp32_flops: float
    link: str = "pcie-4"
    title: str = ""
    source: str = "given"

    def __post_init__(self) -> None:
        for field in ("memory_bytes", "bytes_per_second", "bf16_flops", "fp32_flops"):
            check_number(f"{self.name}'s {field}", getattr(self, field))
        named("link", self.link, LINKS)

    @property
    def has_bf16(self) -> bool:
        """Whether it multiplies in bf16; where not, float16's speed stands for it."""
        return self.name not in _WITHOUT_BF16

    def flops(self, precision: str) -> float:
        """Operations per second of matrix multiplications."""
        return self.fp32_flops if precision == "fp32" else self.bf16_flops

    def __str__(self) -> str:
        return f"{self.title or self.name} ({gib(self.memory_bytes)})"


def _gpu(
    name: str, title: str, usable_gib: float, tb_s: float, bf16: float, fp32: float, link: str,
    source: str,
) -> Gpu:  # fmt: skip
    """Memory in GiB, bandwidth in TB/s, speeds in TFLOP/s."""
    return Gpu(
        name, round(usable_gib * GIB), tb_s * 1e12, bf16 * 1e12, fp32 * 1e12, link, title,
        f"{source} data sheet; memory as torch reports it",
    )  # fmt: skip


_WITHOUT_BF16 = ("t4", "v100-16", "v100-32")
GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu("t4", "T4 16 GB", 14.56, 0.32, 65, 8.1, "pcie-3", "NVIDIA T4"),
        _gpu("v100-16", "V100 SXM2 16 GB", 15.77, 0.9, 125, 15.7, "nvlink-2", "NVIDIA V100"),
        _gpu("v100-32", "V100 SXM2 32 GB", 31.73, 0.9, 125, 15.7, "nvlink-2", "NVIDIA V100"),
        _gpu("a10", "A10 24 GB", 22.03, 0.6, 125, 31.2, "pcie-4", "NVIDIA A10"),
        _gpu("l4", "L4 24 GB", 22.03, 0.3, 121, 30.3, "pcie-4", "NVIDIA L4"),
        _gpu("l40s", "L40S 48 GB", 44.39, 0.864, 362, 91.6, "pcie-4", "NVIDIA L40S"),
        _gpu("rtx-3090", "RTX 3090 24 GB", 23.56, 0.936, 71, 35.6, "pcie-4", "NVIDIA GA102"),
        _gpu("rtx-4090", "RTX 4090 24 GB", 23.52, 1.008, 165.2, 82.6, "pcie-4", "NVIDIA Ada"),
        _gpu("a100-40", "A100 SXM 40 GB", 39.38, 1.555, 312, 19.5, "nvlink-3", "NVIDIA A100"),
        _gpu("a100-80", "A100 SXM 80 GB", 79.15, 2.039, 312, 19.5, "nvlink-3", "NVIDIA A100"),
        _gpu("h100", "H100 SXM 80 GB", 79.18, 3.35, 989.4, 66.9, "nvlink-4", "NVIDIA H100"),
        _gpu("h200", "H200 SXM 141 GB", 139.8, 4.8, 989.4, 66.9, "nvlink-4", "NVIDIA H200"),
        _gpu("b200", "B200 SXM 180 GB", 178.35, 8.0, 2250, 75, "nvlink-5", "NVIDIA HGX B200"),
        _gpu("mi250x", "MI250X 64 GB (one die of two)", 63.98, 1.6384, 191.5, 47.85,
             "infinity-fabric-2", "AMD MI250X"),
        _gpu("mi300x", "MI300X 192 GB", 191.98, 5.3, 1307.4, 163.4, "infinity-fabric-3",
             "AMD MI300X"),
    )
}  # fmt: skip


def preset_of(device: str, total_bytes: int) -> Gpu | None:
    """The preset of a device that calls itself so, such as "NVIDIA A100-SXM4-80GB".

    None where there is none, as for the slower PCIe cards that share a name with an SXM module.
    """
    words = set(_MODEL.findall(device.lower()))
    for gpu in GPUS.values():
        known = _MODEL.findall(gpu.name)[0] in words
        slower = "pcie" in device.lower() and not gpu.link.startswith("pcie")
        if known and not slower and abs(gpu.memory_bytes - total_bytes) < 0.1 * total_bytes:
            return gpu
    return None
