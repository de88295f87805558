"""What may keep a lab from working on this machine, and what would help."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import psutil

from parallab.cluster import Cluster, directory, gpus, room
from parallab.cluster.boot import LOOPBACK
from parallab.cluster.places import cores
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.units import gib

State = Literal["good", "notice", "bad"]
RANKS = 2
ENGINES_OF_A_LAB = 4
# What a notebook's kernel takes with parallab, and JupyterLab itself.
KERNEL_BYTES = 600 * 2**20
JUPYTER_PORT = 8888
# NCCL's ranks of one machine meet there; a container has 64 MiB unless it is told otherwise.
SHARED_MEMORY, SHARED_BYTES = Path("/dev/shm"), 2**30  # noqa: S108
OURS = re.compile(r"parallab\.(cluster\.boot|simulate\.worker|check\.rank) import main")


@dataclass(frozen=True)
class Finding:
    """What was found out about one thing.

    Attributes:
        state: "good"; "notice", the lab works, and there is something to know; "bad", it does not.
        words: a sentence.
        remedy: what would help.
    """

    about: str
    state: State
    words: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = f"\n{'':18}{self.remedy}" if self.remedy else ""
        return f"{self.state:<7}{self.about:<11}{self.words}{remedy}"


def examine() -> Iterator[Finding]:
    """Looks at everything, what everything else needs first; nothing is left behind.

    What cannot be looked at is a finding too, and nothing raises.
    """
    for look in LOOKS:
        name = look.__name__.replace("_", " ")
        try:
            yield from look(name)
        except Exception as error:  # noqa: BLE001 a broken machine may break in any way
            words = " ".join(f"{type(error).__name__}: {error}".split())
            yield Finding(name, "bad", words)


def packages(name: str) -> Iterator[Finding]:
    """Whether everything that parallab declares is installed, in a version that it works with."""
    from packaging.requirements import Requirement

    wanted = [Requirement(line) for line in metadata.requires("parallab") or ()]
    wanted = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    found = {one.name: _version(one.name) for one in wanted}
    amiss = [
        f"{one.name} is {found[one.name] or 'missing'} and must be {one.specifier}"
        for one in wanted
        if not one.specifier.contains(found[one.name] or "0", prereleases=True)
    ]
    if amiss:
        yield Finding(name, "bad", f"{'; '.join(amiss)}.", "`pip install -e .` in a clone.")
    else:
        shown = (f"{one} {_version(one)}" for one in ("torch", "jupyterlab", "ipyparallel"))
        words = f"Python {platform.python_version()}, {', '.join(shown)}, and all else."
        yield Finding(name, "good", words)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def jupyter(name: str) -> Iterator[Finding]:
    """Whether JupyterLab can show widgets."""
    if _version("jupyterlab_widgets"):
        yield Finding(name, "good", "JupyterLab has the extension that shows widgets.")
    else:
        words = "JupyterLab lacks the extension that shows widgets: panels would be text."
        yield Finding(name, "bad", words, "`pip install jupyterlab_widgets`")


def devices(name: str) -> Iterator[Finding]:
    """The GPUs, who uses them, and how busy the cores are."""
    present = gpus.present()
    if present:
        free = sum(gpu.free for gpu in present)
        words = f"{free} of {len(present)} GPUs are free: {', '.join(map(str, present))}."
        yield Finding(name, "good" if free else "notice", words)
    elif any(Path(driver).exists() for driver in gpus.DRIVERS) and not gpus.built_with_gpus():
        words = "There is a GPU's driver, but this torch is built for the CPU: ranks run there."
        yield Finding(name, "notice", words, "Install the build of torch for this GPU.")
    else:
        yield Finding(name, "good", f"torch can use no GPU: ranks run on {cores()} CPU cores.")
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if busy > 0.5 * cores():
        words = f"{busy:.1f} of {cores()} cores are busy: bytes will be exact, and times long."
        yield Finding(name, "notice", words)


def memory(name: str) -> Iterator[Finding]:
    """Whether the engines of a lab fit, and how much shared memory NCCL has."""
    free = room.available_bytes()
    most = max(0, free - KERNEL_BYTES) // room.ENGINE_BYTES
    words = f"{gib(free)} free: room for {most} CPU engines before the first step."
    if most < RANKS:
        yield Finding(name, "bad", words, "End other programs, or use a larger machine.")
    else:
        yield Finding(name, "good" if most >= ENGINES_OF_A_LAB else "notice", words)
    if gpus.present() and SHARED_MEMORY.exists():
        shared = shutil.disk_usage(SHARED_MEMORY).free
        if shared < SHARED_BYTES:
            words = f"{SHARED_MEMORY} has {gib(shared)} free, and ranks on GPUs may need more."
            yield Finding(name, "notice", words, "Start a container with --shm-size=1g.")


def ports(name: str) -> Iterator[Finding]:
    """Whether processes of this machine can talk to each other."""
    with socket.create_server((LOOPBACK, 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()
    words = f"Processes of this machine reach each other on {LOOPBACK}."
    if not _can_bind(JUPYTER_PORT):
        words += f" Port {JUPYTER_PORT} is taken: `parallab lab` uses the next one that is free."
    yield Finding(name, "good", words)


def _can_bind(port: int) -> bool:
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError:
        return False
    return True


def leftovers(name: str) -> Iterator[Finding]:
    """What clusters of this user have left, and which are alive."""
    forgotten = directory.forgotten()
    orphans, living = _ours()
    if forgotten:
        words = f"{len(forgotten)} directories of clusters that were killed."
        yield Finding(name, "notice", words, "Nothing to do: the next cluster removes them.")
    if orphans:
        words = f"{len(orphans)} processes whose notebook is gone."
        yield Finding(name, "notice", words, f"`kill {' '.join(map(str, orphans))}`")
    if not forgotten and not orphans:
        alive = f" {living} processes of yours belong to labs that are open." if living else ""
        yield Finding(name, "good", f"None.{alive}")


def _ours() -> tuple[list[int], int]:
    """This user's processes of ours whose client has ended, and how many others there are."""
    orphans, living = [], 0
    for process in psutil.process_iter(("pid", "cmdline", "uids", "ppid")):
        command = process.info["cmdline"] or []
        mine = process.info["uids"] and process.info["uids"].real == os.getuid()
        if not mine or not any(map(OURS.search, command)):
            continue
        client = next((int(word) for word in command if word.isdigit()), process.info["ppid"])
        if psutil.pid_exists(client):
            living += 1
        else:
            orphans.append(process.info["pid"])
    return orphans, living


def engines(name: str) -> Iterator[Finding]:
    """Two engines, and two real steps."""
    began = time.monotonic()
    with Cluster(RANKS, "cpu") as cluster:
        ready = time.monotonic() - began
        plan = Plan("ddp", RANKS, batch=RANKS, seq=32)
        steps = cluster.run(Model("nano"), plan, steps=2).steps
    words = f"{RANKS} engines were ready in {ready:.1f} s and trained {steps} steps over Gloo."
    yield Finding(name, "good", words)


LOOKS: tuple[Callable[[str], Iterator[Finding]], ...] = (
    packages, jupyter, devices, memory, ports, leftovers, engines,
)  # fmt: skip
