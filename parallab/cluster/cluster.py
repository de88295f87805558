"""The cluster as a person uses it."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from parallab.cluster import engine, places
from parallab.cluster.attached import AttachedPool, connect
from parallab.cluster.calls import gather
from parallab.cluster.health import health_table, rank_health
from parallab.cluster.local import LocalPool
from parallab.cluster.places import Device
from parallab.cluster.pool import Pool, name_ranks
from parallab.cluster.request import Options, check_request, check_room
from parallab.cluster.run import LiveRun, clear, tasks
from parallab.cluster.verification import Verification
from parallab.errors import ClusterError, PlanError
from parallab.models.spec import Model
from parallab.plan import Plan, check_steps
from parallab.report import Report

if TYPE_CHECKING:
    from ipyparallel import Client, DirectView


class Cluster:
    """Engines that stay warm between runs; one engine is one rank.

    >>> with Cluster(4) as cluster:                                        # doctest: +SKIP
    ...     report = cluster.run(Model("micro"), Plan("zero3", devices=4), steps=5)

    It works the same in a notebook, a script and a Python prompt. Engines end with this process,
    however it ends. In IPython, `%px` runs a cell on every engine, where the last run's `model`,
    `optimizer` and `mesh` stay to be looked at until the next run or `release`.

    Args:
        n: engines to start.
        device: "cuda" gives each its own free GPU, "cpu" shares the cores; "auto" takes GPUs where
            there are any.
        timeout: seconds that a rank waits for the others in one collective before it gives up.
        on_status: called with a line such as "Starting engines 3/4", from any thread.

    Attributes:
        cap_bytes: the most that each rank of a run may hold, one number or one for each engine; a
            rank that needs more runs out of memory. None for all that there is.

    Raises:
        PlanError: this machine has no room for n engines; the message says for how many it has.
        ClusterError: an engine did not start.
    """

    def __init__(
        self,
        n: int = 4,
        device: Device = "auto",
        *,
        timeout: float = 600.0,
        on_status: Callable[[str], None] | None = None,
    ) -> None:
        _check_timeout(timeout)
        say = on_status or _say_nothing
        self._set_up(LocalPool(places.choose(n, device), timeout, say), say)

    @classmethod
    def attach(
        cls,
        target: str | Path | Client | None = None,
        *,
        profile: str | None = None,
        cluster_id: str = "",
        device: Device = "auto",
        timeout: float = 300.0,
    ) -> Self:
        """Uses engines that somebody else started: `ipcluster`, Slurm, SSH, JupyterLab's sidebar.

        They are never restarted and never shut down.

        Args:
            target: an ipyparallel Client, a cluster file, or a client's connection file.
            profile, cluster_id: where to find it otherwise; the default profile's unless given.
            device: "auto" takes GPUs where every engine can have one.
            timeout: as for a new cluster; also how long a rank hangs after another one failed.

        Raises:
            ClusterError: no such cluster, no engines, or other versions than here.
        """
        _check_timeout(timeout)
        self = cls.__new__(cls)
        client, ours = connect(target, profile, cluster_id)
        try:
            pool = AttachedPool(client, ours, device, timeout)
        except BaseException:
            if ours:
                client.close(linger=0)
            raise
        self._set_up(pool, _say_nothing)
        return self

    def _set_up(self, pool: Pool, say: Callable[[str], None]) -> None:
        self._pool = pool
        self._say = say
        self._client: Client | None = None
        self._claim = threading.Lock()
        self._run: LiveRun | None = None
        self._verifying = False
        self._held_bytes = 0
        self.cap_bytes: int | Sequence[int] | None = None
        # Held by whoever works with the engines: a run until its engines are healed, verify, ….
        self.turn = threading.Lock()
        # Also at exit, and when nobody refers to this cluster any more.
        self._end = weakref.finalize(self, pool.stop)
        self._activate()

    # What it is.

    @property
    def n(self) -> int:
        """Number of engines."""
        return self._pool.n

    @property
    def device(self) -> str:
        """What the ranks compute on: "cpu" or "cuda"."""
        return self._pool.kind

    @property
    def closed(self) -> bool:
        """Whether it has been shut down."""
        return not self._end.alive

    @property
    def view(self) -> DirectView:
        """All ranks as ipyparallel shows them: `view["model"]`, `view.apply_sync(f)` and the like.

        Raises:
            ClusterError: an engine is lost, or the cluster was shut down.
        """
        self._check_open()
        lost = self._pool.lost()
        if lost and self._pool.owned:
            rank = min(lost)
            raise ClusterError(
                f"Rank {rank} {lost[rank]}; the next run restarts it, and so does recover()."
            )
        self._pool.heal(self._say)  # somebody else's: it says what to do
        return self._pool.view

    def health(self) -> list[dict[str, Any]]:
        """Each rank's "rank", "state", "device", "host", "pid" and "memory_bytes".

        State is "ready", "busy", or what happened to a lost one; memory is the engine process's,
        None where it is lost or on another host.
        """
        lost = dict.fromkeys(range(self.n), "shut down") if self.closed else self._pool.lost()
        run = self._run
        busy = self.n if self._verifying else 0
        if run is not None and not run.finished:
            busy = run.plan.devices
        states = {rank: "busy" if rank < busy else "ready" for rank in range(self.n)} | lost
        return [rank_health(self._pool, rank, state) for rank, state in states.items()]

    # Runs.

    def submit(
        self,
        model: Model,
        plan: Plan,
        steps: int = 5,
        *,
        seed: int = 0,
        text: str | None = None,
        trace_every: int = 5,
    ) -> LiveRun:
        """Starts a run and returns at once.

        A plan of fewer devices than there are engines runs on the first ranks.

        Args:
            steps: how many training steps.
            seed: of the first weights and of the batches.
            text: path of a text file, the same on every host; None takes Python's own sources.
            trace_every: memory is followed by category on steps 0 and 1 and every n-th after 1.

        Raises:
            PlanError: the plan does not go with the model, the engines, or the memory.
            CorpusError: the text cannot be read.
            ClusterError: another run is under way, or the cluster was shut down.
        """
        self._check_open()
        steps = check_steps(steps)
        caps = self.cap_bytes
        options = check_request(self._pool, model, plan, seed, text, trace_every, caps)
        with self._claim:
            self._check_free()
            self._check_room(model, plan)
            self._run = LiveRun(model, plan, steps, options)
            self._run.start(self)
            return self._run

    def run(
        self,
        model: Model,
        plan: Plan,
        steps: int = 5,
        *,
        seed: int = 0,
        text: str | None = None,
        trace_every: int = 5,
    ) -> Report:
        """Runs steps and returns their Report; arguments and errors as for `submit`.

        Ctrl-C ends the run after the current step, and returns what was finished.

        Raises:
            RankError: a rank failed.
        """
        run = self.submit(model, plan, steps, seed=seed, text=text, trace_every=trace_every)
        try:
            return run.result()
        except KeyboardInterrupt:
            run.stop()
            return run.result()

    def verify(
        self, model: Model, plan: Plan, *, steps: int = 3, seed: int = 0, text: str | None = None
    ) -> Verification:
        """Trains the plan and a single device on the same data, and compares loss and weights.

        Raises:
            PlanError, CorpusError, ClusterError, RankError: as for `submit` and `run`.
        """
        self._check_open()
        steps = check_steps(steps)
        options = check_request(self._pool, model, plan, seed, text)
        with self._claim:
            self._check_free()
            self._check_room(model, plan.alone())  # rank 0 trains it when the plan's own is done
            self._check_room(model, plan)
            self._verifying = True
        try:
            with self.turn:
                return self._verify(model, plan, steps, options)
        finally:
            self._verifying = False

    def _verify(self, model: Model, plan: Plan, steps: int, options: Options) -> Verification:
        pool = self.ready(self._say)
        clear(pool, self._say)
        calls = {
            rank: pool.call(rank, engine.verify, {**task, "steps": steps})
            for rank, task in tasks(pool, model, plan, options).items()
        }
        try:
            outcome = gather(pool, calls, "while verifying")
        except KeyboardInterrupt:
            pool.kill(calls)  # there is no step to stop at; the next run restarts them
            raise
        if outcome.error is not None:
            self.mend()
            raise outcome.error
        clear(pool, self._say)
        return Verification.from_ranks(
            plan, [outcome.results[rank]["verified"] for rank in sorted(calls)]
        )

    # Keeping it well.

    def release(self) -> None:
        """Frees what the last run left on the engines: model, optimizer, mesh, process group.

        Raises:
            ClusterError: a run is under way, or an engine does not answer.
        """
        with self._claim:
            self._check_free()
            with self.turn:
                clear(self.ready(self._say), self._say)
                self._held_bytes = 0

    def recover(self) -> list[int]:
        """Kills what does not answer, restarts it, and returns which ranks that were.

        A run under way is ended in the middle of its step; what it has finished stays in its
        `report`. Runs recover by themselves: this is for engines that hang.

        Raises:
            ClusterError: an engine cannot be restarted, or is not ours.
        """
        self._check_open()
        killed: set[int] = set()
        run = self._run
        if run is not None and not run.finished:
            run.end_at_once("recover()")
            killed = set(range(run.plan.devices))
            self._pool.kill(killed)
        with self.turn:
            return sorted(killed | set(self.mend()))

    def ready(self, say: Callable[[str], None]) -> Pool:
        """The engines, with every lost one restarted. Call it with `turn` held."""
        self._check_open()
        self._pool.heal(say)
        self._activate()
        return self._pool

    def mend(self) -> list[int]:
        """Kills and restarts what does not answer. Call it with `turn` held."""
        if self.closed:
            return []
        self._held_bytes = 0
        silent = self._pool.silent()
        if silent and not self._pool.owned:
            raise ClusterError(
                f"{name_ranks(silent)} gave no answer, and this cluster was started elsewhere: "
                "restart it there and attach again."
            )
        self._pool.kill(silent)
        return sorted({*silent, *self._pool.heal(self._say)})

    def shutdown(self) -> None:
        """Ends every engine that we started, and every file of theirs. Safe to call twice."""
        run = self._run
        if run is not None and not run.finished:
            run.end_at_once("shutdown()")
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    # Checks.

    def _check_open(self) -> None:
        if self.closed:
            raise ClusterError(f"This cluster was shut down; Cluster({self.n}) starts a new one.")

    def _check_free(self) -> None:
        self._check_open()
        run = self._run
        if self._verifying:
            raise ClusterError("The engines are busy with a verification; wait until it is over.")
        if run is not None and not run.finished:
            raise ClusterError(
                f"The engines are busy with a run ({run.plan}); wait for its result(), or stop() "
                "it first."
            )

    def _check_room(self, model: Model, plan: Plan) -> None:
        """Refuses what cannot fit, before anything starts; the last run's model goes first."""
        self._held_bytes = check_room(self._pool, model, plan, self._held_bytes)

    def _activate(self) -> None:
        """Makes `%px` of this notebook speak to these engines, again after a full restart."""
        if self._client is self._pool.client:
            return
        self._client = self._pool.client
        from IPython import get_ipython

        if get_ipython() is not None:  # type: ignore[no-untyped-call, unused-ignore]
            self._client.activate()

    # How it looks.

    def __repr__(self) -> str:
        if self.closed:
            return "<Cluster: shut down>"
        states = [row["state"] for row in self.health()]
        counts = ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states))
        return f"<Cluster: {self.n} engine{'s' if self.n > 1 else ''} on {self.device}, {counts}>"

    def _repr_html_(self) -> str:
        return health_table(repr(self)[1:-1], self.health())


def _check_timeout(seconds: object) -> None:
    if not (isinstance(seconds, int | float) and seconds is not True and 0 < seconds < math.inf):
        raise PlanError(f"timeout={seconds!r} must be a number of seconds greater than 0.")


def _say_nothing(status: str) -> None:
    pass
