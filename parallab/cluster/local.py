"""Our own controller and engines on this machine: started, watched, killed, restarted, ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from parallab.cluster import boot
from parallab.cluster.interrupts import uninterrupted
from parallab.cluster.places import Place
from parallab.cluster.pool import CONTROLLER_DIED, NURSERY_DIED, Pool
from parallab.cluster.processes import Processes
from parallab.errors import ClusterError

START_SECONDS = 180.0  # generous: a loaded machine with a cold disk, and many engines
WATCH_SECONDS = 0.5


class LocalPool(Pool):
    """One engine for each place, with a controller between them and this process.

    An engine's number at the controller is its rank, also after a restart. Files live in a private
    directory that only this user can read and that goes with the pool.

    Args:
        places: where the ranks compute, in order.
        status: called with one line for a person, from the thread that starts or heals.

    Raises:
        ClusterError: a process died or did not come up in time; nothing is left running then.
    """

    owned = True

    def __init__(self, places: list[Place], timeout: float, status: Callable[[str], None]) -> None:
        super().__init__(timeout)
        self.n = len(places)
        self.kind = places[0].kind
        self._places = places
        self._lock = threading.RLock()
        self._processes: Processes | None = None
        self._death = CONTROLLER_DIED  # of the last processes, where they are gone
        self._closed = False
        try:
            self._start(status)
        except BaseException:
            self.stop()
            raise
        threading.Thread(target=self._watch, daemon=True, name="parallab-watch").start()

    def engine_id(self, rank: int) -> int:
        """The rank itself."""
        return rank

    def gpu(self, rank: int) -> int | None:
        """The only one that its engine sees."""
        return 0 if self.kind == "cuda" else None

    # Who is there.

    def lost(self) -> dict[int, str]:
        """Ranks whose process ended or stands still; all of them where the whole is broken."""
        processes = self._processes
        if processes is None or processes.broken():
            return dict.fromkeys(range(self.n), _death(processes) or self._death)
        troubles = {rank: processes.trouble(rank) for rank in range(self.n)}
        return {rank: trouble for rank, trouble in troubles.items() if trouble is not None}

    def kill(self, ranks: Collection[int]) -> None:
        """Ends engines at once. Their nannies stay a moment to tell the controller."""
        processes = self._processes
        if processes is not None:
            processes.kill(ranks)

    def heal(self, status: Callable[[str], None]) -> list[int]:
        """Restarts what is lost: single engines, or everything where the whole is broken."""
        with self._lock:
            if self._closed:
                raise ClusterError("This cluster was shut down; Cluster() starts a new one.")
            ranks = sorted(self.lost())
            if not ranks:
                return []
            if self._processes is None or self._processes.broken():
                self._end()
                self._start(status)
                return ranks
            self.kill(ranks)
            deadline = time.monotonic() + START_SECONDS
            while set(self.client.ids) & set(ranks):  # until the controller knows it too
                self._pause(self._processes, deadline, [])
            for rank in ranks:
                self._processes.start_engine(rank, self._places[rank].environment)
            self._await_engines(self._processes, ranks, "Restarting", status)
            return ranks

    # Starting.

    def _start(self, status: Callable[[str], None]) -> None:
        status(f"Starting {self.n} engine{'s' if self.n > 1 else ''}")
        # The ranks' variables go to the nursery too: OpenMP counts its threads when torch loads.
        with uninterrupted():
            self._processes = processes = Processes(self._places[0].environment)
        for rank, place in enumerate(self._places):
            processes.start_engine(rank, place.environment)
        # Imported here, while the other processes start too: it takes half a second.
        import ipyparallel

        deadline = time.monotonic() + START_SECONDS
        while not (found := boot.connection(processes.directory, "client")):
            self._pause(processes, deadline, [])
        self.client = ipyparallel.Client(found)
        self._await_engines(processes, range(self.n), "Starting", status)

    def _await_engines(
        self, processes: Processes, ranks: Collection[int], verb: str, status: Callable[[str], None]
    ) -> None:
        deadline = time.monotonic() + START_SECONDS
        before = -1
        while (ready := len(set(ranks) & set(self.client.ids))) < len(ranks):
            if ready != before:
                status(f"{verb} engines {ready}/{len(ranks)}")
                before = ready
            self._pause(processes, deadline, ranks)
        self.meet(ranks)
        if self.kind == "cuda" and not all(self.facts[rank]["gpus"] for rank in ranks):
            raise ClusterError(
                "The engines' torch cannot use the GPUs that the driver reports; check it with "
                "torch.cuda.is_available(). device='cpu' works meanwhile."
            )
        status(f"{self.n} engine{'s are' if self.n > 1 else ' is'} ready")

    def _pause(self, processes: Processes, deadline: float, ranks: Collection[int]) -> None:
        """Waits a moment, unless there is nothing left to wait for."""
        time.sleep(0.05)
        if self._closed:
            raise ClusterError("The cluster was shut down while its engines were starting.")
        if (name := processes.broken()) is not None:
            raise ClusterError(f"The engines' {name} did not start. {processes.last_words()}")
        for rank in ranks:
            trouble = processes.trouble(rank)
            if trouble is not None:
                words = processes.last_words(f"engine-{rank}")
                raise ClusterError(f"The engine of rank {rank} {trouble} at start. {words}")
        if time.monotonic() > deadline:
            raise ClusterError(
                f"The engines did not start within {START_SECONDS:.0f} s; this machine may be too "
                f"busy for {self.n} of them."
            )

    # Ending.

    def _watch(self) -> None:
        """Ends what is left when controller or nursery died: nothing may be left behind."""
        while not self._closed:
            time.sleep(WATCH_SECONDS)
            with self._lock:
                if self._processes is not None and self._processes.broken():
                    self._end()

    @uninterrupted()
    def _end(self) -> None:
        if self._processes is not None:
            self._death = _death(self._processes) or self._death
            self._processes.end()
            self._processes = None
        self.facts.clear()
        if hasattr(self, "client"):
            self.client.close(linger=0)

    @uninterrupted()
    def stop(self) -> None:
        """Ends every process and releases the GPUs."""
        self._closed = True  # before the lock: a start or a heal under way gives up
        with self._lock:
            self._end()
            for place in self._places:
                place.release()


def _death(processes: Processes | None) -> str | None:
    """What to say of every rank where the controller or the nursery has ended."""
    broken = processes.broken() if processes is not None else None
    return {"controller": CONTROLLER_DIED, "nursery": NURSERY_DIED, None: None}[broken]
