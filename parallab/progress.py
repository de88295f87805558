"""A run as its watcher sees it: what is new, what is wrong, how to stop it.

Panels and the terminal talk to a `Run` and nothing else, so a run on real engines
(`parallab.cluster`) and the replay of a saved Report are the same to them.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.report import Report, Step

State = Literal["starting", "running", "stopping", "done", "stopped", "failed"]
FINISHED: tuple[State, ...] = ("done", "stopped", "failed")


@dataclass
class Gauge:
    """What one rank is doing at this moment: the latest value only, none is kept."""

    rank: int
    step: int
    phase: str
    bytes: int


@dataclass
class Progress:
    """Everything that is new since the last poll.

    Attributes:
        state: where the run stands.
        message: one line for a person, in words.
        steps: newly finished steps, in order; each is the list of its ranks' `Step`.
        gauges: the latest live value of each rank, where it published one.
    """

    state: State
    message: str = ""
    steps: list[list[Step]] = field(default_factory=list)
    gauges: list[Gauge] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.state in FINISHED


class Run(Protocol):
    """A run under way, or one that is over."""

    model: Model
    plan: Plan
    total_steps: int

    def poll(self) -> Progress:
        """What is new since the last call. Returns at once, from any thread."""

    def stop(self) -> None:
        """Asks the run to end after the current step. Returns at once."""

    def result(self, timeout: float | None = None) -> Report:
        """Waits for the end and returns the Report; a stopped run's holds what was finished.

        Raises:
            ClusterError: the run failed, in words.
            TimeoutError: it is still running after `timeout` seconds.
        """


class Replay:
    """A saved Report, played back step by step.

    Args:
        report: what was recorded.
        steps_per_poll: how many steps each poll brings.
        speed: play by the clock instead, so many times as fast as it ran: a step comes when it
            was over. Steps that took no time are brought as without.
        clock: seconds that pass.

    Raises:
        ValueError: steps_per_poll is less than 1, or speed is not above 0.
    """

    def __init__(
        self,
        report: Report,
        steps_per_poll: int = 1,
        *,
        speed: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if steps_per_poll < 1:
            raise ValueError(f"steps_per_poll={steps_per_poll} would never come to the end.")
        if speed is not None and not speed > 0:
            raise ValueError(f"speed={speed} would never come to the end.")
        ends = step_ends(report) if speed is not None else []
        self._due = [end / speed for end in ends] if speed is not None else []
        self._clock = clock
        self._begun: float | None = None
        self.model = report.model
        self.plan = report.plan
        self.total_steps = report.steps
        self._report = report
        self._each = steps_per_poll
        self._at = 0
        self._stopped = False

    def poll(self) -> Progress:
        """The next steps of the recording."""
        if self._stopped:
            plural = "" if self._at == 1 else "s"
            return Progress("stopped", f"Stopped after {self._at} step{plural}.")
        until = self._until()
        steps = [[r.steps[i] for r in self._report.ranks] for i in range(self._at, until)]
        self._at = until
        if until == self.total_steps:
            return Progress("done", f"Replayed {until} {self._report.source} steps.", steps)
        return Progress("running", f"Step {until} of {self.total_steps} (replay).", steps)

    def _until(self) -> int:
        """How many steps have been played after this poll."""
        if not self._due:
            return min(self._at + self._each, self.total_steps)
        now = self._clock()
        if self._begun is None:
            self._begun = now
        return bisect.bisect_right(self._due, now - self._begun)

    def stop(self) -> None:
        """Ends the replay where it is."""
        self._stopped = True

    def result(self, timeout: float | None = None) -> Report:
        """The Report itself, or as much of it as was played before a stop."""
        if not self._stopped:
            return self._report
        ranks = [replace(rank, steps=rank.steps[: self._at]) for rank in self._report.ranks]
        return replace(self._report, ranks=ranks)


def step_ends(report: Report) -> list[float]:
    """When each step was over, in seconds since the first began; empty where nothing took time.

    Between steps a run may pause; where it is not known when they began, one follows the other.
    """
    ends: list[float] = []
    first = _begin(report, 0)
    for index in range(report.steps):
        seconds = max((r.steps[index].seconds or 0.0 for r in report.ranks), default=0.0)
        begin = _begin(report, index)
        before = ends[-1] if ends else 0.0
        since = before if begin is None or first is None else begin - first
        ends.append(max(before, since + seconds))
    return ends if ends and ends[-1] > 0 else []


def _begin(report: Report, index: int) -> float | None:
    """When the first rank began a step; None where that is not known."""
    if index >= report.steps:
        return None
    begins = [rank.steps[index].begin for rank in report.ranks]
    return min((begin for begin in begins if begin is not None), default=None)
