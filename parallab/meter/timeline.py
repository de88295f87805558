"""What a rank was doing when: the phases of a step as spans on one clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from parallab.report import Span

# time.time() can jump and perf_counter() starts anywhere: one offset, taken once, gives a clock
# that is steady and that all ranks of a host share.
_EPOCH = time.time() - time.perf_counter()


def now() -> float:
    """Seconds since 1970, steady and of sub-microsecond resolution."""
    return _EPOCH + time.perf_counter()


@dataclass(frozen=True)
class Phase:
    """What the rank is doing; "other" between the phases of a step.

    Attributes:
        kind: the span that it becomes: its name, "weight" for the weights' half of a backward pass,
            or "" for none.
    """

    name: str = "other"
    micro_batch: int = 0
    stage: int = 0
    kind: str = ""


@dataclass
class _Stretch:
    """A phase and its two ends: host seconds, or CUDA events that the device has yet to reach."""

    phase: Phase
    start: Any
    end: Any = None


class Timeline:
    """The spans of the step under way.

    On a GPU, launching work takes no time and doing it does: the ends of a span are events on the
    current stream, and the step is over when the device has finished.

    Args:
        device: where the step runs.

    Attributes:
        stretch: counts up where a phase begins or ends.
    """

    def __init__(self, device: torch.device) -> None:
        self.phase = Phase()
        self.stretch = 0
        self.begin_seconds = now()
        self.step_seconds: float | None = None
        self._device = device
        self._origin: Any = None
        self._stretches: list[_Stretch] = []

    def since_begin(self) -> float:
        """Host seconds since the step began."""
        return now() - self.begin_seconds

    @contextmanager
    def recorded_step(self) -> Iterator[None]:
        """The step: everything before is forgotten, its duration is known after."""
        self.phase = Phase()
        self.step_seconds = None
        self._stretches = []
        self._synchronize()
        self._origin = self.stamp()
        self.begin_seconds = now()
        try:
            yield
        finally:
            self.phase = Phase()
        self._synchronize()
        self.step_seconds = self.since_begin()

    @contextmanager
    def recorded_phase(self, phase: Phase) -> Iterator[None]:
        """A stretch of the step; phases may lie within one another."""
        outer, self.phase = self.phase, phase
        self.stretch += 1
        stretch = _Stretch(phase, self.stamp())
        if phase.kind:
            self._stretches.append(stretch)
        try:
            yield
        finally:
            stretch.end = self.stamp()
            self.phase = outer
            self.stretch += 1

    def spans(self) -> list[Span]:
        """The finished step's phases, in the order in which they began."""
        spans = []
        for stretch in self._stretches:
            phase = stretch.phase
            start, end = self.seconds(stretch.start), self.seconds(stretch.end)
            spans.append(Span(phase.kind, phase.stage, phase.micro_batch, start, end))
        return spans

    def stamp(self) -> Any:
        """This moment of the device's work; `seconds` tells when it was, once the step is over."""
        if self._device.type != "cuda":
            return now()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, stamp: Any) -> float:
        """Seconds from the step's beginning to a stamp."""
        if self._device.type != "cuda":
            return float(stamp - self.begin_seconds)
        return float(self._origin.elapsed_time(stamp)) / 1e3

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
