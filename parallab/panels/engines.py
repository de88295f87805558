"""Where a panel's runs happen: engines that start when they are first needed, or a saved Report."""

from __future__ import annotations

import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from parallab.cluster import gpus
from parallab.cluster.places import Device
from parallab.cluster.room import available_bytes
from parallab.errors import ClusterError
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.predict.report import Kernels
from parallab.progress import Replay, Run
from parallab.report import Report, Source

if TYPE_CHECKING:
    from parallab.cluster import Cluster

Say = Callable[[str], None]

CPU_ENGINES = 8
FIRST_ENGINES = 4
UNLIMITED_BYTES = 2**63


class Submitter(Protocol):
    """Something that runs plans."""

    def submit(self, model: Model, plan: Plan, steps: int) -> Run:
        """Starts a run and returns at once."""


class Runner(Protocol):
    """What a panel needs of the place where its runs happen.

    Attributes:
        source: what the runs' figures are.
        replayed: the Report that is played back, None where runs are real.
    """

    source: Source
    replayed: Report | None

    @property
    def max_devices(self) -> int:
        """The most devices that a plan may ask for."""

    @property
    def kernels(self) -> Kernels:
        """Whose kernels run: what they keep for the backward pass differs."""

    def claim(self, devices: int, say: Say) -> AbstractContextManager[Submitter]:
        """Makes ready for a run on so many devices, and keeps others out until it is over.

        Raises:
            ClusterError: busy, or the engines cannot be started.
        """

    def devices(self, count: int) -> list[str]:
        """What the first ranks run on."""

    def room(self) -> tuple[int, bool]:
        """Bytes for a run, and whether all ranks share them."""

    def release(self) -> str:
        """Frees what the engines hold of the last run. Returns what was done, in words."""

    def close(self) -> None:
        """The panel needs it no more."""


class Engines:
    """The engines of one kernel: started at the first run, kept warm, shared by its panels.

    Args:
        cluster: engines that are running already; they are used as they are and never shut down.
        device: what to start engines on.

    Attributes:
        users: panels that are open.
    """

    source: Source = "measured"
    replayed: Report | None = None

    def __init__(self, cluster: Cluster | None = None, device: Device = "auto") -> None:
        self._cluster = cluster
        self._given = cluster is not None
        self._device = device
        self._elsewhere = cluster is not None and _runs_elsewhere(cluster)
        kind = cluster.device if cluster is not None else device
        self._gpus = [] if kind == "cpu" or self._elsewhere else gpus.present()
        self.kernels: Kernels = "cuda" if self._gpus or kind == "cuda" else "cpu"
        self._claimed = threading.Lock()
        self._work = ""
        self.users = 1
        if self._given:
            _given[self] = None

    @property
    def max_devices(self) -> int:
        """The given cluster's engines; otherwise this machine's GPUs, or a few on its CPU."""
        if self._given and self._cluster is not None:
            return self._cluster.n
        return len(self._gpus) or CPU_ENGINES

    @property
    def alive(self) -> bool:
        """Whether a given cluster is still there; our own is started when it is needed."""
        return not (self._given and self._cluster is not None and self._cluster.closed)

    @contextmanager
    def claim(self, devices: int, say: Say) -> Iterator[Submitter]:
        """The cluster, with engines enough, for one run.

        Raises:
            ClusterError: another panel's run is under way, or the engines do not start.
        """
        if not self._claimed.acquire(blocking=False):
            raise ClusterError(
                f"The engines are busy with another panel's run on {self._work}. Stop it there, "
                "or press Run again when it has finished."
            )
        try:
            self._work = f"{devices} device{'s' if devices > 1 else ''}"
            yield self._ready(devices, say)
        finally:
            self._claimed.release()

    def _ready(self, devices: int, say: Say) -> Cluster:
        from parallab.cluster import Cluster

        cluster = self._cluster
        if cluster is not None and cluster.closed and not self._given:
            cluster = self._cluster = None
        if cluster is not None and (self._given or cluster.n >= devices):
            return cluster
        wanted = max(devices, min(FIRST_ENGINES, self.max_devices))
        if cluster is not None:
            say(f"Restarting with {wanted} engines instead of {cluster.n} …")
            self._cluster = None
            cluster.shutdown()
        self._cluster = Cluster(wanted, self._device, on_status=say)
        return self._cluster

    def devices(self, count: int) -> list[str]:
        """What the first ranks run on; unknown before the engines have started."""
        device = self._cluster.device if self._cluster else ""
        return [f"{device}:{i}" if device == "cuda" else device for i in range(count)]

    def room(self) -> tuple[int, bool]:
        """A whole GPU for each rank, or this machine's free memory for all of them.

        Of other hosts nothing is known here: the cluster itself refuses what they cannot hold.
        """
        if self._elsewhere:
            return UNLIMITED_BYTES, True
        if self._gpus:
            return min(gpu.total_bytes for gpu in self._gpus), False
        return available_bytes(), True

    def release(self) -> str:
        """Frees the last run's model on all engines."""
        if self._cluster is None:
            return "Nothing to release: no engines have been started."
        if not self._claimed.acquire(blocking=False):
            return "Nothing released: a run is under way."
        try:
            self._cluster.release()
        finally:
            self._claimed.release()
        return "Released: the engines hold no model now."

    def close(self) -> None:
        """Shuts down the engines that were started here, once the last panel is closed."""
        with self._claimed:
            self.users -= 1
            if self.users <= 0 and self._cluster is not None and not self._given:
                cluster, self._cluster = self._cluster, None
                cluster.shutdown()


class Playback:
    """A saved Report in place of engines.

    Args:
        speed: how many times as fast as it ran; None is as fast as it can be shown.
    """

    def __init__(self, report: Report, speed: float | None = None) -> None:
        self._speed = speed
        self.source: Source = report.source
        self.replayed: Report | None = report
        self.max_devices = report.plan.devices
        on_gpus = any(rank.device.startswith("cuda") for rank in report.ranks)
        self.kernels: Kernels = "cuda" if on_gpus else "cpu"

    @contextmanager
    def claim(self, devices: int, say: Say) -> Iterator[Submitter]:
        """Nothing to start, and nothing to share."""
        yield self

    def submit(self, model: Model, plan: Plan, steps: int) -> Run:
        """Plays the Report from its beginning."""
        assert self.replayed is not None
        return Replay(self.replayed, speed=self._speed)

    def devices(self, count: int) -> list[str]:
        """What the Report's ranks ran on."""
        assert self.replayed is not None
        return [rank.device for rank in self.replayed.ranks]

    def room(self) -> tuple[int, bool]:
        """A replay needs none, so nothing is too big for it."""
        return UNLIMITED_BYTES, True

    def release(self) -> str:
        """Nothing is held."""
        return "Nothing to release: this is a replay."

    def close(self) -> None:
        """Nothing to end."""


def _runs_elsewhere(cluster: Cluster) -> bool:
    return {row["host"] for row in cluster.health()} != {socket.gethostname()}


_shared: dict[Device, Engines] = {}
# In the order in which they came: a set of weak references that is ordered.
_given: weakref.WeakKeyDictionary[Engines, None] = weakref.WeakKeyDictionary()
_shared_lock = threading.Lock()


def shared(device: Device) -> Engines:
    """The kernel's own engines: a second panel, or a cell run again, starts no second set."""
    with _shared_lock:
        if device in _shared:
            _shared[device].users += 1
        else:
            _shared[device] = Engines(device=device)
        return _shared[device]


def at_hand() -> Engines:
    """The engines that a panel of this kernel has; the kernel's own where no panel is open.

    For whoever runs plans without a panel, such as a check, and closes nothing.
    """
    with _shared_lock:
        for engines in (*reversed(list(_given)), *_shared.values()):
            if engines.users > 0 and engines.alive:
                return engines
        if "auto" not in _shared:
            _shared["auto"] = Engines()
            _shared["auto"].users = 0
        return _shared["auto"]
