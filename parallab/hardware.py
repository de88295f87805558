"""The GPUs that a plan is to run on, and what connects them.

Ranks 0 to gpus_per_node - 1 share the first node, and so on. As the tensor axis varies fastest and
the pipeline axis slowest (`Plan.coordinates`), this decides which axis stays inside a node.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from parallab import html
from parallab.datasheets import GPUS, LINKS, NETWORKS, Gpu, Link, Network, check_number, named
from parallab.errors import HardwareError
from parallab.units import gib

MOST = 65_536  # GPUs, as many as a Plan takes
# From here on, sharded weights arrive about as fast as a large GPU needs them.
FAST_BYTES_PER_SECOND = 12.5e9


@dataclass(frozen=True)
class Ring:
    """The ranks of one group, each passing on to the next.

    Attributes:
        size: ranks in it.
        nodes: nodes that it runs through.
        bytes_per_second: what each rank can pass on.
        latency_seconds: of one pass around, size - 1 steps.
        tree_seconds: the latency from the leaves of a tree to its root, the ranks of a node in a
            row and the nodes in a binary tree.
    """

    size: int
    nodes: int
    bytes_per_second: float
    latency_seconds: float
    tree_seconds: float


@dataclass(frozen=True, init=False)
class Hardware(html.Shown):
    """Nodes of equal GPUs, the links between them, and how much of each GPU is free.

    >>> hardware = Hardware("h100", nodes=2)
    >>> hardware.devices, hardware.free_bytes[0] // 2**30
    (16, 79)

    Args:
        gpu: a name of `GPUS`, or a `Gpu` of your own.
        interconnect: between nodes: a name of `NETWORKS`, the Gb/s of a node, or a `Network`.
        link: inside a node: a name of `LINKS`, or a `Link`; the GPU's own unless given.
        free_bytes: what others leave of each GPU: one number, or one for each in the order of
            ranks. All of it unless given.
        headroom: the part of it that no plan is to fill: the CUDA context, NCCL's buffers and
            what the allocator cannot use come on top of a plan's bytes.

    Raises:
        HardwareError: a name that is not known, or a number that cannot be.
    """

    gpu: Gpu
    nodes: int
    gpus_per_node: int
    interconnect: Network
    link: Link
    free_bytes: tuple[int, ...]
    headroom: float

    def __init__(
        self,
        gpu: str | Gpu = "h100",
        nodes: int = 1,
        gpus_per_node: int = 8,
        *,
        interconnect: str | float | Network = "fast",
        link: str | Link | None = None,
        free_bytes: int | Sequence[int] | None = None,
        headroom: float = 0.1,
    ) -> None:
        for name, count in (("nodes", nodes), ("gpus_per_node", gpus_per_node)):
            _check_count(name, count)
        if nodes * gpus_per_node > MOST:
            raise HardwareError(
                f"nodes={nodes} × gpus_per_node={gpus_per_node} is {nodes * gpus_per_node:,} GPUs; "
                f"the most is {MOST:,}."
            )
        check_number("headroom", headroom, 0, 0.95)
        gpu = gpu if isinstance(gpu, Gpu) else named("GPU", gpu, GPUS)
        link = gpu.link if link is None else link
        values: dict[str, Any] = dict(
            gpu=gpu, nodes=nodes, gpus_per_node=gpus_per_node, interconnect=_network(interconnect),
            link=link if isinstance(link, Link) else named("link", link, LINKS),
            free_bytes=_free(free_bytes, gpu, nodes * gpus_per_node), headroom=float(headroom),
        )  # fmt: skip
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def devices(self) -> int:
        """All GPUs."""
        return self.nodes * self.gpus_per_node

    @functools.cached_property
    def between(self) -> Link:
        """One GPU's share of its node's network."""
        return self.interconnect.link(self.gpus_per_node)

    @property
    def fast(self) -> bool:
        """Whether sharded weights cross nodes, if there are several, about as fast as needed."""
        return self.nodes == 1 or self.between.bytes_per_second >= FAST_BYTES_PER_SECOND

    @functools.cached_property
    def room_bytes(self) -> tuple[int, ...]:
        """What a plan may fill of each GPU."""
        return tuple(int(free * (1 - self.headroom)) for free in self.free_bytes)

    def with_nodes(self, nodes: int) -> Hardware:
        """So many nodes of this kind, each GPU as free as the fullest one is."""
        return replace(self, nodes=nodes, free_bytes=(min(self.free_bytes),) * (
            nodes * self.gpus_per_node
        ))  # fmt: skip

    def ring(self, stride: int, size: int) -> Ring:
        """The slowest ring of `size` ranks that are `stride` apart.

        Inside a node it runs at the link's speed. Where it leaves one, as many of its ranks as the
        node holds send side by side, each over its share of the network.
        """
        together, nodes = _spread(stride, size, self.gpus_per_node, self.devices)
        inside, outside = self.link.latency_seconds, self.between.latency_seconds
        latency = (size - nodes) * inside + (nodes - 1) * outside
        tree = (-(-size // nodes) - 1) * inside + (nodes - 1).bit_length() * outside
        speed = self.link.bytes_per_second
        if nodes > 1:
            speed = min(speed, together * self.between.bytes_per_second)
        return Ring(size, nodes, speed, latency, tree)

    def hop(self, stride: int, size: int) -> Link:
        """What carries bytes from one of `size` ranks to the next, `stride` further, at worst."""
        nodes = _spread(stride, size, self.gpus_per_node, self.devices)[1]
        return self.link if nodes == 1 else self.between

    def to_dict(self) -> dict[str, Any]:
        """Every field, ready for JSON."""
        return {**asdict(self), "free_bytes": list(self.free_bytes)}

    def __repr__(self) -> str:
        return f"<Hardware: {self}>"

    def __str__(self) -> str:
        each = f"{self.gpus_per_node} × {self.gpu}"
        parts = [f"{self.nodes} nodes of {each}" if self.nodes > 1 else each]
        if self.gpus_per_node > 1:
            parts.append(f"{self.link} inside a node")
        if self.nodes > 1:
            parts.append(f"{self.between} between nodes")
        return ", ".join(parts)


@functools.lru_cache(maxsize=4096)
def _spread(stride: int, size: int, gpus_per_node: int, devices: int) -> tuple[int, int]:
    """Of the groups of `size` ranks, `stride` apart, the one that is worst placed.

    Returns:
        The fewest of its ranks on one node, and the nodes that it runs through.
    """
    worst = (size, 1)
    for first in _firsts(stride, size, gpus_per_node, devices):
        counts: dict[int, int] = {}
        for i in range(size):
            node = (first + i * stride) // gpus_per_node
            counts[node] = counts.get(node, 0) + 1
        placed = (min(counts.values()), len(counts))
        worst = min(worst, placed, key=lambda p: (p[1] == 1, p[0], -p[1]))
    return worst


def _firsts(stride: int, size: int, gpus_per_node: int, devices: int) -> Iterator[int]:
    """The first rank of every group that lies unlike the others against the nodes' borders."""
    span = stride * size
    for base in range(0, min(devices, math.lcm(span, gpus_per_node)), span):
        step = stride if gpus_per_node % stride == 0 or stride % gpus_per_node == 0 else 1
        yield from range(base, base + stride, step)


def _check_count(label: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise HardwareError(f"{label}={value!r} must be a whole number from 1 to {MOST:,}.")


def _network(given: str | float | Network) -> Network:
    if isinstance(given, Network):
        return given
    speed = isinstance(given, int | float) and not isinstance(given, bool)
    if not speed and not (isinstance(given, str) and re.fullmatch(r"\d+(\.\d+)?", given)):
        found: Network = named("interconnect", given, NETWORKS)
        return found
    gbits = float(given)
    check_number("interconnect", gbits)
    return Network(f"{gbits:g}", gbits * 1e9, True, f"{gbits:g} Gb/s for each node")


def _free(given: int | Sequence[int] | None, gpu: Gpu, devices: int) -> tuple[int, ...]:
    if given is None:
        return (gpu.memory_bytes,) * devices
    each = [given] * devices if isinstance(given, int | float) else list(given)
    if len(each) != devices:
        raise HardwareError(
            f"free_bytes names {len(each)} GPUs, and there are {devices}; give one number for all, "
            "or one for each."
        )
    for free in each:
        check_number("free_bytes", free, 0, 1e18)
        if free > 1.1 * gpu.memory_bytes:  # cards of one name differ a little
            raise HardwareError(
                f"free_bytes={free:,} is {gib(free)}, more than the {gpu} has; give bytes, or "
                "the GPU that it is."
            )
    return tuple(int(free) for free in each)
