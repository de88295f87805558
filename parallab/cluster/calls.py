"""One call on many ranks, and what to tell when some of them fail.

A rank that raises leaves its peers waiting in a collective, for as long as the process group's
timeout says. Whoever has not come back a moment after the first failure is therefore killed: that
is what always works, and `Pool.heal` restarts it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from parallab import errors
from parallab.cluster.pool import CONTROLLER_DIED, NURSERY_DIED, Pool, name_ranks
from parallab.errors import ClusterError, ParallabError, RankError

if TYPE_CHECKING:
    from ipyparallel import AsyncResult

# Peers of a rank that failed on its own get this long to fail as well, and so to be spared.
GRACE_SECONDS = 2.0
POLL_SECONDS = 0.1
# What a rank says that failed only because another one did.
SECONDARY = (
    "Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting",
    "timed out", "remote process exited", "ncclRemoteError", "Socket Timeout",
)  # fmt: skip
# A person's mistakes, which an engine may be the first to see.
REQUESTS = {"ModelError", "PlanError", "CorpusError"}


@dataclass
class Outcome:
    """What came of a call.

    Attributes:
        results: by rank, from those that came back.
        error: None where every rank did its work.
    """

    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    error: ParallabError | None = None


def gather(
    pool: Pool,
    calls: Mapping[int, AsyncResult],
    where: str,
    given_up: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Waits for calls on several ranks, but not for ranks that will never answer.

    Args:
        calls: under way, by rank.
        where: what they are doing, for the sentence: "in step 3".
        given_up: whether nobody wants the results any more.
    """
    pending = dict(calls)
    outcome = Outcome()
    failures: dict[int, dict[str, Any]] = {}
    give_up_at: float | None = None
    while pending and (give_up_at is None or time.monotonic() < give_up_at):
        wait(pending.values(), timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
        lost = pool.lost()
        for rank in list(pending):
            if rank in lost:
                failures[rank] = {"lost": lost[rank]}
            elif pending[rank].done():
                result = _result(pending[rank])
                outcome.results[rank] = result
                if "failure" in result:
                    failures[rank] = result["failure"]
            else:
                continue
            del pending[rank]
        if failures and give_up_at is None:
            give_up_at = time.monotonic() + GRACE_SECONDS
        if given_up():
            outcome.error = ClusterError(f"The engines were given up {where}.")
            return outcome
    if failures:
        stuck = set(pending)
        pool.kill(stuck | {rank for rank, told in failures.items() if told.get("spoiled")})
        outcome.error = explain(failures, stuck, where, pool.owned)
    return outcome


def explain(
    failures: Mapping[int, Mapping[str, Any]], stuck: Collection[int], where: str, owned: bool
) -> ParallabError:
    """The error that started it, as one sentence, and what became of the other ranks.

    Args:
        failures: by rank: {"lost": what happened to its process}, or `engine.failure`.
        stuck: ranks that waited for them.
        owned: whether ranks that wait are restarted.
    """
    gone = {rank: told for rank, told in failures.items() if "lost" in told}
    first = {rank: told for rank, told in failures.items() if not _secondary(told)}
    for lost, name in ((CONTROLLER_DIED, "controller"), (NURSERY_DIED, "nursery of engines")):
        if lost in (told["lost"] for told in gone.values()):
            return ClusterError(f"The cluster's {name} died {where}; the next run restarts it.")
    if gone:
        rank = min(gone)
        what = gone[rank]["lost"]
        if len(gone) > 1:
            message = f"{name_ranks(gone)}: each {what} {where}"
        else:
            message = f"Rank {rank} {what} {where}"
        if "SIGKILL" in what:
            message += "; when nobody did that by hand, the system was out of memory"
        details = ""
    elif not first and stuck:
        rank = min(stuck)
        message = f"{name_ranks(stuck)} did not come to a collective that others waited for {where}"
        details = str(next(iter(failures.values()))["traceback"])
    else:
        by_time = first or failures
        rank = min(by_time, key=lambda r: (by_time[r]["time"], r))
        told = by_time[rank]
        if told["type"] in REQUESTS:
            return getattr(errors, told["type"])(told["message"])  # type: ignore[no-any-return]
        message, details = _sentence(rank, told, where), str(told["traceback"])
    waited = set(stuck) - {rank}
    return RankError(f"{message}.{_aftermath(waited | set(gone), owned)}", rank, details)


def _secondary(told: Mapping[str, Any]) -> bool:
    return "lost" in told or any(mark in told["message"] for mark in SECONDARY)


def _sentence(rank: int, told: Mapping[str, Any], where: str) -> str:
    message = " ".join(told["message"].split()).rstrip(".")
    if told["out_of_memory"]:
        return (
            f"Rank {rank} ran out of memory {where} ({message[:300]}). More micro-batches, "
            "recompute='full', a shorter seq or a strategy that shards more, such as zero3, "
            "needs less"
        )
    if told["type"] == "KeyboardInterrupt":
        return f"Rank {rank} was interrupted {where}"
    return f"Rank {rank} failed {where}: {told['type']}: {message[:500]}"


def _aftermath(ranks: Collection[int], owned: bool) -> str:
    if not ranks:
        return ""
    plural = len(ranks) > 1
    if owned:
        return f" {name_ranks(ranks)} {'are' if plural else 'is'} being restarted."
    return (
        f" {name_ranks(ranks)} may be waiting for it still; this cluster was started elsewhere, "
        "so restart it there if the next run finds no answer."
    )


def _result(call: AsyncResult) -> dict[str, Any]:
    """A call's result; an error of ipyparallel's, such as a result that cannot be read, as data."""
    try:
        return dict(call.get())
    except Exception as error:  # noqa: BLE001  ipyparallel raises what the engine raised
        return {
            "failure": {
                "type": getattr(error, "ename", type(error).__name__),
                "message": str(getattr(error, "evalue", error)),
                "traceback": str(error),
                "out_of_memory": False,
                "time": time.time(),
            }
        }
