"""A run on engines: chunks of steps, driven from a thread, watched and stopped from any other."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from parallab.cluster import engine
from parallab.cluster.calls import Outcome, gather
from parallab.cluster.pool import ANSWER_SECONDS, Pool, name_ranks
from parallab.cluster.request import Options
from parallab.errors import ClusterError, ParallabError
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.progress import FINISHED, Gauge, Progress, State
from parallab.report import WARM_STEP, Rank, Report, Step

if TYPE_CHECKING:
    from ipyparallel import AsyncResult

    from parallab.cluster.cluster import Cluster

# A chunk is as many steps as fit into this: short enough that Stop and the panel feel live, long
# enough that a call (20 ms for 4 engines) costs little.
CHUNK_SECONDS = 0.3


class LiveRun:
    """A run on the engines of a `Cluster`, as `parallab.progress.Run` describes it.

    `Cluster.submit` makes one. A stopped or failed run keeps what was finished: `report` is there
    at any time.
    """

    def __init__(self, model: Model, plan: Plan, steps: int, options: Options) -> None:
        self.model, self.plan, self.total_steps = model, plan, steps
        self.options = options
        self.error: ParallabError | None = None
        self.ended_by = ""
        self._lock = threading.Lock()
        self._state: State = "starting"
        self._message = "Waiting for the engines."
        self._steps: list[list[Step]] = []
        self._unseen: deque[list[Step]] = deque()
        self._places: list[dict[str, Any]] = []
        self._environment: dict[str, Any] = {}
        self._calls: Mapping[int, AsyncResult] = {}
        self._stopping = threading.Event()
        self._over = threading.Event()
        self._begun = False  # whether the ranks have been asked for anything

    def start(self, cluster: Cluster) -> None:
        """Begins; `Cluster.submit` calls it."""
        # Only the thread knows the cluster: a run that is kept must not keep the engines.
        threading.Thread(
            target=self._drive, args=(cluster,), daemon=True, name="parallab-run"
        ).start()

    # For whoever watches.

    @property
    def state(self) -> State:
        """Where the run stands."""
        return self._state

    @property
    def finished(self) -> bool:
        """Whether it is over, in whatever way."""
        return self._state in FINISHED

    @property
    def report(self) -> Report:
        """What has been finished so far."""
        with self._lock:
            steps = list(self._steps)
        ranks = [
            Rank(place["rank"], place["coords"], place["device"], place["host"],
                 [step[i] for step in steps])
            for i, place in enumerate(self._places)
        ]  # fmt: skip
        return Report("measured", self.model, self.plan, dict(self._environment), ranks)

    def poll(self) -> Progress:
        """What is new since the last call."""
        with self._lock:
            steps = [self._unseen.popleft() for _ in range(len(self._unseen))]
            return Progress(self._state, self._message, steps, self._gauges())

    def _gauges(self) -> list[Gauge]:
        """The latest value of each rank that is in the middle of a chunk."""
        gauges = []
        for rank, call in sorted(self._calls.items()):
            data = call.metadata["data"]
            if data and not call.done():
                gauges.append(Gauge(rank, data["step"], data["phase"], data["bytes"]))
        return gauges

    def stop(self) -> None:
        """Asks the run to end after the current step."""
        with self._lock:
            self._stopping.set()
            if self._state in ("starting", "running"):
                self._state = "stopping"
                self._message = "Stopping after the current step."

    def wait(self, timeout: float | None = None) -> Self:
        """Waits for the end, whatever it is: `error` says in words why a run failed.

        Raises:
            TimeoutError: it is still running after `timeout` seconds.
        """
        if not self._over.wait(timeout):
            raise TimeoutError(f"The run is still under way after {timeout} s: {self._message}")
        return self

    def result(self, timeout: float | None = None) -> Report:
        """Waits for the end and returns the Report.

        Raises:
            RankError: a rank failed; `report` has the steps before.
            ClusterError: the engines were lost, or could not be restarted.
            PlanError, ModelError, CorpusError: an engine found that the request cannot work.
            TimeoutError: it is still running after `timeout` seconds.
        """
        self.wait(timeout)
        if self.error is not None:
            raise self.error
        return self.report

    def end_at_once(self, by: str) -> None:
        """Ends the run in the middle of a step: its engines are about to be killed."""
        self.ended_by = by
        self._stopping.set()

    def __repr__(self) -> str:
        done = f"{len(self._steps)} of {self.total_steps} steps"
        return f"<LiveRun: {self.model.name}, {self.plan}, {self._state}, {done}>"

    # The thread that drives it.

    def _drive(self, cluster: Cluster) -> None:
        with cluster.turn:  # whoever had the engines before may still be healing them
            try:
                pool = cluster.ready(self._say)
                if not self._stopping.is_set():
                    self._train(pool)
                done = len(self._steps) == self.total_steps
                self._end("done" if done else "stopped", self._summary())
            except ParallabError as error:
                self._fail(error)
            except Exception as error:  # noqa: BLE001  whoever waits must hear of it
                self._fail(ClusterError(f"The run broke off: {type(error).__name__}: {error}."))
            # Whoever is busy with something else before it has begun is left to it.
            if self.error is not None and self._begun:
                with contextlib.suppress(ClusterError):  # the next run will tell
                    cluster.mend()

    def _train(self, pool: Pool) -> None:
        self._begin(pool)
        started = time.monotonic()
        count, left = 1, self.total_steps
        while left and not self._stopping.is_set():
            self._advance(pool, count)
            left -= count
            now = time.monotonic()
            count = max(1, min(left, int(count * CHUNK_SECONDS / (now - started))))
            started = now
            self._say(f"Step {len(self._steps)} of {self.total_steps}.")

    def _begin(self, pool: Pool) -> None:
        """Makes the ranks meet and build their parts of the model."""
        clear(pool, self._say)
        self._begun = True
        self._say(f"{self.plan.devices} ranks build {self.model.name}.", "running")
        calls = {
            rank: pool.call(rank, engine.begin, task)
            for rank, task in tasks(pool, self.model, self.plan, self.options).items()
        }
        outcome = self._gather(pool, calls, "while building the model")
        places = [outcome.results[rank]["place"] for rank in sorted(outcome.results)]
        check_texts(places)
        self._environment = environment(pool, places, self.options)
        self._places = places

    def _advance(self, pool: Pool, count: int) -> None:
        calls = {rank: pool.call(rank, engine.advance, count) for rank in range(self.plan.devices)}
        first = len(self._steps)
        where = f"in step {first}" if count == 1 else f"in steps {first} to {first + count - 1}"
        self._gather(pool, calls, where)

    def _gather(self, pool: Pool, calls: Mapping[int, AsyncResult], where: str) -> Outcome:
        """Waits, keeps the steps that all ranks finished, and raises what went wrong."""
        with self._lock:
            self._calls = calls
        outcome = gather(pool, calls, where, given_up=lambda: bool(self.ended_by))
        if len(outcome.results) == len(calls):
            self._keep([outcome.results[rank].get("steps", []) for rank in sorted(calls)])
        with self._lock:
            self._calls = {}
        if outcome.error is not None:
            raise outcome.error
        return outcome

    def _keep(self, by_rank: list[list[dict[str, Any]]]) -> None:
        for records in zip(*by_rank, strict=False):  # a rank that failed has fewer
            step = [Step.from_dict(record) for record in records]
            with self._lock:
                self._steps.append(step)
                self._unseen.append(step)

    # What it says.

    def _say(self, message: str, state: State | None = None) -> None:
        with self._lock:
            if self._state == "stopping":
                return
            self._message = message
            self._state = state or self._state

    def _summary(self) -> str:
        done, total = len(self._steps), self.total_steps
        if done < total:
            return f"Stopped after {done} of {total} steps."
        seconds = self.report.step_seconds
        pace = f", {seconds * 1000:,.0f} ms each" if seconds else ""
        return f"{done} step{'s' if done > 1 else ''} done{pace}."

    def _fail(self, error: ParallabError) -> None:
        if self.ended_by:
            done = f"{len(self._steps)} of {self.total_steps} steps"
            error = ClusterError(f"{self.ended_by} ended the run after {done}.")
        self.error = error
        self._end("failed", str(error))

    def _end(self, state: State, message: str) -> None:
        with self._lock:
            self._state, self._message = state, message
        self._over.set()


def clear(pool: Pool, say: Callable[[str], None]) -> None:
    """Frees what the last run left on every engine; restarts one that died just before.

    Raises:
        ClusterError: an engine is busy with something else.
    """
    given_up = time.monotonic() + ANSWER_SECONDS
    while silent := pool.silent():
        if pool.heal(say):
            continue
        if time.monotonic() >= given_up:
            raise ClusterError(
                f"{name_ranks(silent)} did not answer within {ANSWER_SECONDS:.0f} s, being busy "
                "with something else, such as a %px cell; wait for it, or call cluster.recover()."
            )
        time.sleep(0.05)  # it could not be reached: that it has died is known in a moment
    pool.heal(say)


def tasks(pool: Pool, model: Model, plan: Plan, options: Options) -> dict[int, dict[str, Any]]:
    """Opens the store on rank 0, and says to each rank what `engine.begin` needs."""
    hosts = {pool.facts[rank]["host"] for rank in range(plan.devices)}
    other = next(iter(hosts - {pool.facts[0]["host"]}), None)
    address, port = pool.call(0, engine.open_store, other).get(ANSWER_SECONDS)
    return {
        rank: {
            "rank": rank, "world": plan.devices, "address": address, "port": port,
            "backend": pool.backend, "timeout": pool.timeout, "gpu": pool.gpu(rank),
            "model": model.to_dict(), "plan": plan.to_dict(),
            "seed": options.seed, "text": options.text, "trace_every": options.trace_every,
            "cap_bytes": options.cap_bytes[rank] if options.cap_bytes else None,
        }
        for rank in range(plan.devices)
    }  # fmt: skip


def check_texts(places: list[dict[str, Any]]) -> None:
    """Raises ClusterError unless all ranks read the same text."""
    digests = {place["corpus"] for place in places}
    if len(digests) > 1:
        listed = ", ".join(f"rank {p['rank']} on {p['host']}: {p['corpus']}" for p in places)
        raise ClusterError(
            f"The ranks read different texts ({listed}); give a file that is the same on every "
            "host (text=...)."
        )


def environment(pool: Pool, places: list[dict[str, Any]], options: Options) -> dict[str, Any]:
    """What the Report's figures depend on besides model and plan."""
    facts = pool.facts[0]
    return {
        **{
            key: facts[key]
            for key in ("torch", "parallab", "python", "platform", "threads", "cores")
        },
        "backend": pool.backend,
        "hosts": list(dict.fromkeys(place["host"] for place in places)),
        "devices": [place["device"] for place in places],
        "seed": options.seed,
        "text": options.text or "Python standard library",
        "corpus": places[0]["corpus"],
        "trace_every": options.trace_every,
        "cap_bytes": list(options.cap_bytes) if options.cap_bytes else None,
        "warm_step": WARM_STEP,
    }
