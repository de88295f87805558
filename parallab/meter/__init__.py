"""What one rank records of its steps: memory, communication, and time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from parallab.meter.categories import Row
from parallab.meter.communication import CommunicationMeter
from parallab.meter.memory import MemoryMeter
from parallab.meter.timeline import Phase, Timeline
from parallab.report import Step

__all__ = ["Meter"]


class Meter:
    """The three meters of one rank, for one run.

    >>> meter = Meter(torch.device("cpu"), {})            # doctest: +SKIP
    >>> meter.watch(module, optimizer)                    # doctest: +SKIP
    >>> with meter.step(0, traced=True):                  # doctest: +SKIP
    ...     with meter.phase("forward"):
    ...         loss = module(tokens)
    >>> meter.take(loss.item()).memory.at_peak            # doctest: +SKIP

    Make it before the model: memory that is older than the meter does not count, the model's
    states excepted. Every step records communication and spans; memory by category is recorded on
    traced steps, which are slower, and at the ends of phases on the others.

    Args:
        device: where the rank trains.
        axes: process-group name -> mesh axis ("dp", "pp", "tp"); other groups are "world".
        cap_bytes: the most that training may hold; more raises `torch.OutOfMemoryError`.
    """

    def __init__(
        self, device: torch.device, axes: Mapping[str, str], cap_bytes: int | None = None
    ) -> None:
        self._timeline = Timeline(device)
        self._memory = MemoryMeter(device, self._timeline, cap_bytes)
        self._communication = CommunicationMeter(axes, self._timeline, timed=device.type == "cpu")
        self._index = -1
        self._traced = False

    @property
    def knows_total(self) -> bool:
        """Whether the allocator's total can be read here; without it there is no workspace."""
        return self._memory.total_bytes() is not None

    def watch(self, module: nn.Module, optimizer: Optimizer | None) -> None:
        """Names what to classify as parameters, buffers, gradients and optimizer state.

        Call it when the module is in its final form (sharded, wrapped, materialised).

        Args:
            module: everything that this rank trains.
            optimizer: None on a rank that has none.
        """
        self._memory.watch(module, optimizer)

    def label(self, tensor: Tensor, category: str) -> None:
        """Says what a tensor is for, in the middle of a step, where the meter cannot know.

        Args:
            category: one of `parallab.report.CATEGORIES`.
        """
        self._memory.label(tensor, category)

    @contextmanager
    def step(self, index: int, traced: bool) -> Iterator[None]:
        """One step; its record can be taken when it is over."""
        self._index, self._traced = index, traced
        with (
            self._communication.recorded_step(),
            self._timeline.recorded_step(),
            self._memory.recorded_step(traced),
        ):
            yield

    @contextmanager
    def phase(
        self, name: str, micro_batch: int = 0, stage: int = 0, kind: str | None = None
    ) -> Iterator[None]:
        """A stretch of the step, "forward", "backward" or "optimizer".

        It becomes a span of its name; communication and memory peaks inside it bear it too. Outside
        any phase, communication is in the phase "other".

        Args:
            kind: the span's, where it is not the name: "weight", or "" for no span.
        """
        self._memory.mark()
        phase = Phase(name, micro_batch, stage, name if kind is None else kind)
        with self._timeline.recorded_phase(phase):
            with self._memory.recorded_phase(name):
                yield
            self._memory.mark()

    def take(self, loss: float | None) -> Step:
        """The record of the step that has just ended.

        Args:
            loss: this rank's, None where it computes none.
        """
        return Step(
            step=self._index,
            loss=loss,
            seconds=self._timeline.step_seconds,
            traced=self._traced,
            memory=self._memory.memory(),
            communication=self._communication.rows(),
            spans=self._timeline.spans() + self._communication.spans(),
            begin=self._timeline.begin_seconds,
            traffic=self._communication.traffic(),
        )

    def moments(self) -> list[Row]:
        """The traced step that was taken, by category at every moment that was looked at."""
        return self._memory.moments()

    def gauge(self) -> dict[str, Any]:
        """{"step", "phase", "bytes"} of this moment, from any thread."""
        return {
            "step": self._index,
            "phase": self._timeline.phase.name,
            "bytes": self._memory.live_bytes(),
        }

    def close(self) -> None:
        """Stops counting and lets go of the model; may be called again."""
        self._communication.close()
        self._memory.close()
