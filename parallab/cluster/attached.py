"""A cluster that somebody else started: used as it is, never restarted, never shut down."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallab.cluster.pool import Pool, name_ranks
from parallab.errors import ClusterError, PlanError

if TYPE_CHECKING:
    from ipyparallel import Client

    from parallab.cluster.places import Device

# What every client's connection file holds, whoever wrote it.
CONNECTION_KEYS = {"interface", "registration", "task_scheme"}


class AttachedPool(Pool):
    """The engines that an ipyparallel client sees, ranked by host and then by engine number.

    Args:
        client: connected to them.
        close: whether to close the client at the end, because we opened it.
        device: "auto" computes on GPUs where every rank can have its own.

    Raises:
        ClusterError: there are no engines, or they do not fit together.
        PlanError: device="cuda" without a GPU for every rank.
    """

    owned = False

    def __init__(self, client: Client, close: bool, device: Device, timeout: float) -> None:
        super().__init__(timeout)
        self.client = client
        self._close = close
        self._ids: list[int] = sorted(client.ids)
        self.n = len(self._ids)
        if not self._ids:
            raise ClusterError("This cluster has no engines; start some and attach again.")
        self.meet(range(self.n))
        by_place = sorted(range(self.n), key=lambda i: (self.facts[i]["host"], self._ids[i]))
        self._ids = [self._ids[i] for i in by_place]
        self.facts = {rank: self.facts[i] for rank, i in enumerate(by_place)}
        own = {(facts["host"], self._gpu_uuid(rank)) for rank, facts in self.facts.items()}
        enough = len(own) == self.n and all(uuid for host, uuid in own)
        if device == "cuda" and not enough:
            raise PlanError(
                f"device='cuda' needs a GPU for each of the {self.n} engines, and they do not "
                "have that many; device='cpu' would work."
            )
        self.kind = "cuda" if enough and device != "cpu" else "cpu"

    def gpu(self, rank: int) -> int | None:
        """The n-th engine of a host takes its n-th GPU, unless each engine sees only its own."""
        return self._gpu_number(rank) if self.kind == "cuda" else None

    def _gpu_number(self, rank: int) -> int:
        if len(self.facts[rank]["gpus"]) == 1:
            return 0
        hosts = [str(self.facts[r]["host"]) for r in range(rank + 1)]
        return hosts.count(hosts[-1]) - 1

    def _gpu_uuid(self, rank: int) -> str:
        """Its GPU, empty where there is none left for it."""
        uuids = dict(enumerate(self.facts[rank]["gpus"]))
        return str(uuids.get(self._gpu_number(rank), ""))

    def engine_id(self, rank: int) -> int:
        """The number that ipyparallel's controller gave it."""
        return self._ids[rank]

    def lost(self) -> dict[int, str]:
        """Ranks whose engine has left the controller's list."""
        present = set(self.client.ids)
        return {rank: "left the cluster" for rank, i in enumerate(self._ids) if i not in present}

    def kill(self, ranks: Collection[int]) -> None:
        """Nothing: they are not ours."""

    def heal(self, status: Callable[[str], None]) -> list[int]:
        """Nothing to do while every engine is there."""
        lost = self.lost()
        if lost:
            raise ClusterError(
                f"{name_ranks(lost)} left the cluster. It was started elsewhere, so parallab does "
                "not restart it: restart it there and attach again."
            )
        return []

    def stop(self) -> None:
        """Closes our connection, if it is ours; the cluster stays as it is."""
        if self._close:
            self.client.close(linger=0)


def connect(
    target: str | Path | Client | None, profile: str | None, cluster_id: str
) -> tuple[Client, bool]:
    """A client, and whether we opened it.

    Args:
        target: a client; or the path of a cluster file (`cluster-….json`) or of a client's
            connection file (`ipcontroller-…-client.json`); None goes by profile.
        profile: IPython profile, "default" unless given.
        cluster_id: as `ipcluster start --cluster-id` had it; empty unless given.

    Raises:
        ClusterError: no such cluster, or it does not answer.
    """
    import ipyparallel

    if isinstance(target, ipyparallel.Client):
        return target, False
    if target is None:
        from IPython.paths import locate_profile

        try:
            security = Path(locate_profile(profile or "default")) / "security"
        except OSError as error:
            raise ClusterError(f"There is no cluster to attach to: {error}.") from error
        path = _client_file(security, cluster_id)
    elif isinstance(target, str | os.PathLike):
        path = _client_file_of(Path(target).expanduser())
    else:
        raise ClusterError(
            f"{target!r} is nothing to attach to; a Client, or the path of a cluster file or of a "
            "client's connection file, would work."
        )
    if not path.is_file():
        raise ClusterError(
            f"There is no cluster to attach to: {path} does not exist. Start one, for example with "
            "`ipcluster start -n 4`, or name its profile or its file."
        )
    if not _json(path).keys() >= CONNECTION_KEYS:
        raise ClusterError(
            f"{path} is not the file of a cluster; a cluster file (`cluster-….json`) or a client's "
            "connection file (`ipcontroller-…-client.json`) would work."
        )
    try:
        return ipyparallel.Client(str(path)), True
    except Exception as error:
        raise ClusterError(f"The cluster of {path} does not answer: {error}.") from error


def _client_file_of(path: Path) -> Path:
    """The connection file of a cluster file; any other path is one already."""
    cluster = _json(path).get("cluster")
    if not isinstance(cluster, dict) or not cluster.keys() >= {"profile_dir", "cluster_id"}:
        return path
    return _client_file(Path(cluster["profile_dir"]) / "security", cluster["cluster_id"])


def _json(path: Path) -> dict[str, Any]:
    """What a file holds; empty where that is no JSON object."""
    try:
        about = json.loads(path.read_text())
    except (OSError, ValueError):  # no such file, not text, not JSON
        return {}
    return about if isinstance(about, dict) else {}


def _client_file(security: Path, cluster_id: str) -> Path:
    name = f"ipcontroller-{cluster_id}-client.json" if cluster_id else "ipcontroller-client.json"
    return security / name
