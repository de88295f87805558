"""Fixtures for every test: one warm cluster of four engines, well again after each test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from parallab.cluster import Cluster

# The longest come first, so that the processes of `pytest -n` end together: ranks that share the
# cores beside files that mostly wait, then what starts a notebook.
FIRST = (
    "test_three_ways.py",
    "cluster/test_life.py",
    "cluster/test_faults.py",
    "test_labs.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {Path(__file__).parent / name: at for at, name in enumerate(FIRST)}
    items.sort(key=lambda item: place.get(item.path, len(FIRST)))


@pytest.fixture(scope="session")
def engines() -> Iterator[Cluster]:
    """Four CPU engines for the whole session; afterwards nothing of theirs may be left."""
    cluster = Cluster(4, "cpu")
    folder = cluster_folder(cluster)
    processes = processes_of(folder)
    yield cluster
    processes += processes_of(folder)
    cluster.shutdown()
    assert still_running(processes, seconds=5) == []
    assert not folder.exists()


@pytest.fixture
def cluster(engines: Cluster) -> Iterator[Cluster]:
    """The session's engines, idle and healthy; a test may do to them what it likes."""
    yield engines
    make_well(engines)
    assert {row["state"] for row in engines.health()} == {"ready"}


@pytest.fixture
def sabotage(cluster: Cluster) -> Iterator[Callable[[str, list[int]], None]]:
    """Runs code on some engines that may replace the trainer's parts; undone after the test.

    The code finds `Trainer`, and what its `step` and `__init__` were as plain_step and plain_init.
    """

    def apply(code: str, ranks: list[int]) -> None:
        for rank in ranks:
            cluster.view.client[rank].execute(
                "from parallab.rank.trainer import Trainer\n"
                f"plain_step, plain_init = Trainer.step, Trainer.__init__\n{code}",
                block=True,
            )

    yield apply
    make_well(cluster)
    cluster.view.execute(
        "if 'plain_step' in globals():\n"  # not so where the engine has been restarted
        "    Trainer.step, Trainer.__init__ = plain_step, plain_init",
        block=True,
    )


def make_well(cluster: Cluster) -> None:
    """Ends what is under way and restarts what is lost."""
    if cluster._run is not None and not cluster._run.finished:
        cluster.recover()
    with cluster.turn:
        cluster.mend()


def cluster_folder(cluster: Cluster) -> Path:
    """The private directory of a cluster of ours."""
    processes = cluster._pool._processes  # type: ignore[attr-defined]
    return Path(processes.directory)


def processes_of(folder: Path) -> list[psutil.Process]:
    """What the cluster with this directory has started, and what those have."""
    started = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # one that has ended says nothing of itself
            if str(folder) in process.cmdline():
                started.append(process)
    return started + [child for p in started for child in p.children(recursive=True)]


def still_running(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Processes that are left after so long; one that ended and waits for its parent is not."""
    _, left = psutil.wait_procs(processes, timeout=seconds)
    alive = []
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
    return alive
