"""Engines as the rest of the room sees them: call, who is lost, kill, heal.

Pool                 what both have in common
├── LocalPool        our own controller and engines on this machine (`local.py`)
└── AttachedPool     a cluster that somebody else started (`attached.py`)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

from parallab.cluster import engine
from parallab.cluster.places import Kind
from parallab.errors import ClusterError

if TYPE_CHECKING:
    from ipyparallel import AsyncResult, Client, DirectView

HELLO_SECONDS = 60.0
ANSWER_SECONDS = 10.0
# What `lost` says of every rank when one process that they all need is gone.
CONTROLLER_DIED = "lost its controller"
NURSERY_DIED = "lost its nursery"


class Pool(ABC):
    """Ranks 0 … n-1, one engine each.

    Attributes:
        n: how many.
        kind: "cpu" or "cuda": what the ranks compute on.
        facts: what each engine said about itself, by rank (`engine.hello`).
        timeout: seconds that a rank waits for the others in one collective.
        owned: whether we started the engines, and so may kill and restart them.
    """

    owned: bool
    n: int
    kind: Kind
    client: Client

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.facts: dict[int, dict[str, Any]] = {}

    @abstractmethod
    def engine_id(self, rank: int) -> int:
        """The number, at ipyparallel's controller, of this rank's engine."""

    @abstractmethod
    def gpu(self, rank: int) -> int | None:
        """The number of this rank's GPU as its engine sees it; None on the CPU."""

    @abstractmethod
    def lost(self) -> dict[int, str]:
        """Ranks that cannot work any more -> what happened to them, in words."""

    @abstractmethod
    def kill(self, ranks: Collection[int]) -> None:
        """Ends engines that do not answer. Does nothing where they are not ours."""

    @abstractmethod
    def heal(self, status: Callable[[str], None]) -> list[int]:
        """Restarts every lost rank, and returns which they were.

        Raises:
            ClusterError: that did not work, or the engines are not ours.
        """

    @abstractmethod
    def stop(self) -> None:
        """Ends everything that we started. Never raises, and may be called twice."""

    @property
    def backend(self) -> str:
        """torch.distributed's backend for these engines."""
        return "nccl" if self.kind == "cuda" else "gloo"

    @property
    def view(self) -> DirectView:
        """All ranks, in order, as ipyparallel shows them."""
        return self.client[[self.engine_id(rank) for rank in range(self.n)]]

    def call(self, rank: int, function: Callable[..., Any], *arguments: Any) -> AsyncResult:
        """Starts `function(*arguments)` on one rank's engine and returns at once.

        Raises:
            ClusterError: the engine has just been lost.
        """
        try:
            return self.client[self.engine_id(rank)].apply_async(function, *arguments)
        except Exception as error:
            raise ClusterError(f"Rank {rank} cannot be reached: {error}.") from error

    def answers(
        self, ranks: Collection[int], function: Callable[..., Any], seconds: float
    ) -> dict[int, Any]:
        """Calls `function()` on ranks; by rank, what came back in time, be it an exception."""
        calls, lost = {}, {}
        for rank in ranks:
            try:
                calls[rank] = self.call(rank, function)
            except ClusterError as error:  # it died since its ranks were counted
                lost[rank] = error
        wait(calls.values(), timeout=seconds)
        done = {rank: c.exception() or c.result() for rank, c in calls.items() if c.done()}
        return {**lost, **done}

    def silent(self) -> list[int]:
        """Ranks that are busy with something else; the others have freed the last run's model."""
        alive = set(range(self.n)) - set(self.lost())
        answers = self.answers(alive, engine.release, ANSWER_SECONDS)
        well = {rank for rank, answer in answers.items() if not isinstance(answer, Exception)}
        return sorted(alive - well)

    def meet(self, ranks: Collection[int]) -> None:
        """Asks engines who they are, and refuses a cluster that is not of one mind.

        Raises:
            ClusterError: an engine is silent, or its versions are not the others'.
        """
        found = self.answers(ranks, engine.hello, HELLO_SECONDS)
        for rank, answer in found.items():
            if isinstance(answer, Exception):
                raise ClusterError(
                    f"The engine of rank {rank} cannot work with this parallab: {answer}. Every "
                    "engine needs parallab and torch installed, in the versions used here."
                ) from answer
        silent = sorted(set(ranks) - set(found))
        if silent:
            raise ClusterError(
                f"{name_ranks(silent)} did not answer within {HELLO_SECONDS:.0f} s. "
                "Another task may still be running there; wait for it, or restart the cluster."
            )
        self.facts.update(found)
        for what in ("python", "torch", "parallab"):
            versions = {rank: facts[what] for rank, facts in sorted(self.facts.items())}
            if len(set(versions.values())) > 1:
                listed = ", ".join(f"rank {rank}: {v}" for rank, v in versions.items())
                raise ClusterError(
                    f"All engines need the same {what}, but they have {listed}. "
                    "Install the same version everywhere and start the cluster again."
                )

    @property
    def hosts(self) -> list[str]:
        """The ranks' hosts, in order of rank, each once."""
        return list(dict.fromkeys(self.facts[rank]["host"] for rank in sorted(self.facts)))


def name_ranks(ranks: Collection[int]) -> str:
    """Ranks for a sentence: "Rank 2", or "Ranks 0, 1 and 3"."""
    numbers = [str(rank) for rank in sorted(ranks)]
    if len(numbers) == 1:
        return f"Rank {numbers[0]}"
    return f"Ranks {', '.join(numbers[:-1])} and {numbers[-1]}"
