"""How much memory a step takes on one rank, and what for."""

from __future__ import annotations

import contextlib
import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from parallab.meter.allocator import allocator_of
from parallab.meter.categories import CategoryTracker, Row, storage_of
from parallab.meter.timeline import Timeline
from parallab.report import CATEGORIES, PHASES, Memory, PhaseMemory

_SERIES_POINTS = 200
_STATES = ("parameters", "gradients", "optimizer", "buffers")


class MemoryMeter:
    """Memory of the steps of one rank.

    What counts is what training takes: what the allocator has handed out since this meter was
    made, and the model's states if they are older. So make it before the model, and after anything
    that is not to count (a corpus on the device).

    A traced step is looked at after every op. On CPU that misses what a kernel takes and gives back
    before it returns; CUDA's allocator knows that too, and it is added as workspace. An untraced
    step is looked at where phases begin and end: on CPU its peak is the highest total seen there,
    a lower bound; on CUDA it is the allocator's own. (A thread that looks every millisecond cost
    6 to 20 % of a step, so there is none.)

    Where the CPU's allocator cannot be read (`total_bytes` is None), traced steps have no workspace
    and the peak of untraced ones is the sum of the model's states.

    A cap stands for what others leave of the device: the first look that finds more raises
    `torch.OutOfMemoryError`, as the allocator does where there is no more.

    Args:
        device: whose memory.
        timeline: the clock and the current phase.
        cap_bytes: the most that training may hold; None for all that there is.
    """

    def __init__(
        self, device: torch.device, timeline: Timeline, cap_bytes: int | None = None
    ) -> None:
        gc.collect()  # what an earlier run left in cycles must not be freed during this one
        self._timeline = timeline
        self._held = HeldStates(device)
        self._allocator = allocator_of(device)
        self._baseline_bytes = self._allocator.total_bytes() or 0
        self._cap_bytes = cap_bytes
        self._tracker = CategoryTracker(timeline, device, self._looked_at)
        self._traced = False
        self._states: dict[str, int] = {}
        self._peaks: dict[str, int] = {}
        self._marks: list[tuple[Any, int]] = []
        self._moments: list[Row] = []

    def watch(self, module: nn.Module, optimizer: Optimizer | None) -> None:
        """Names what holds the model's states; `parallab.meter.Meter.watch`."""
        self._held = HeldStates(self._held.device, module, optimizer)
        self._include_older_states()

    def label(self, tensor: Tensor, category: str) -> None:
        """Says what a tensor is for; `parallab.meter.Meter.label`."""
        self._tracker.label(tensor, category)

    def close(self) -> None:
        """Lets go of the model."""
        self._held = HeldStates(self._held.device)
        self._tracker.forget()
        self._moments = []

    def total_bytes(self) -> int | None:
        """Bytes that training holds at this moment, None where the allocator cannot be read."""
        total = self._allocator.total_bytes()
        return None if total is None else max(0, total - self._baseline_bytes)

    def live_bytes(self) -> int:
        """The total, or what is known of it."""
        total = self.total_bytes()
        return self._tracker.tracked_bytes() if total is None else total

    def _looked_at(self) -> int | None:
        total = self.total_bytes()
        self._check_cap(total)
        return total

    def _check_cap(self, total: int | None) -> None:
        if self._cap_bytes is not None and total is not None and total > self._cap_bytes:
            held, cap = total / 2**20, self._cap_bytes / 2**20
            raise torch.OutOfMemoryError(
                f"it came to hold {held:,.2f} MiB in the {self._timeline.phase.name} phase, and "
                f"its cap is {cap:,.2f} MiB"
            )

    @contextmanager
    def recorded_step(self, traced: bool) -> Iterator[None]:
        """One step, followed by category if traced."""
        self._traced = traced
        self._states, self._peaks, self._marks, self._moments = {}, {}, [], []
        self._allocator.reset_peak()
        with self._tracker.recorded_step(self._held) if traced else contextlib.nullcontext():
            yield
            self.mark()
            if not self._states:  # a rank that owns no optimizer may have no such phase
                self._states = self._held.bytes()

    @contextmanager
    def recorded_phase(self, name: str) -> Iterator[None]:
        """A phase; to be entered where the timeline is in it already."""
        if not self._traced and self._allocator.peak_bytes() is None:
            # What the phase before has left is there as this one begins.
            self._peaks[name] = max(self.total_bytes() or 0, self._peaks.get(name, 0))
        if name != "optimizer":
            yield
            return
        # As the optimizer finds them; its own state, which its first step makes, as it leaves it.
        claimed: set[int] = set()
        weights = self._held.count(self._held.weights(), claimed)
        # What backward left may be freed now, and its place in memory be taken by something else.
        gradients = self._held.count(self._held.gradients(), set(claimed))
        yield
        updated = self._held.count(self._held.optimizer_state(), claimed)
        found = weights | gradients | updated
        self._states = {state: found.get(state, 0) for state in _STATES}

    def mark(self) -> None:
        """A phase ends: what was seen since the last mark belongs to it."""
        name = self._timeline.phase.name
        total, seen = self.total_bytes(), self._allocator.peak_bytes()
        if total is not None:
            self._marks.append((self._timeline.stamp(), total))
        seen = total if seen is None else max(0, seen - self._baseline_bytes)
        self._allocator.reset_peak()
        self._peaks[name] = max(seen or 0, self._peaks.get(name, 0))
        self._check_cap(seen)
        if self._traced:
            self._tracker.hold(self._held)
            self._tracker.sample()

    def moments(self) -> list[Row]:
        """The finished traced step's; `parallab.meter.Meter.moments`."""
        return self._moments

    def memory(self) -> Memory:
        """The finished step's memory."""
        memory = self._traced_memory() if self._traced else self._untraced_memory()
        if self._marks:
            stamps, totals = zip(*self._marks, strict=True)
            memory.marks = {
                "seconds": [self._timeline.seconds(stamp) for stamp in stamps],
                "bytes": list(totals),
            }
        return memory

    def _untraced_memory(self) -> Memory:
        return Memory(
            peak_bytes=max(self._peaks.values()) or sum(self._states.values()),
            states=self._states,
            phases=[PhaseMemory(p, self._peaks[p]) for p in PHASES if p in self._peaks],
        )

    def _traced_memory(self) -> Memory:
        rows = self._moments = self._tracker.rows()
        highest: dict[str, Row] = {}
        for row in rows:
            if row.phase not in highest or row.total > highest[row.phase].total:
                highest[row.phase] = row
        for phase in highest.keys() & set(PHASES):
            # What a kernel took and gave back between two looks. Between phases there is no kernel,
            # and what the last phase left is no peak of theirs.
            row = highest[phase]
            row.by_category[-1] += max(0, self._peaks.get(phase, 0) - row.total)
        peak = max(highest.values(), key=lambda row: row.total)
        return Memory(
            peak_bytes=peak.total,
            at_peak=self._by_category(peak),
            states=self._states,
            phases=[
                PhaseMemory(p, highest[p].total, self._by_category(highest[p]))
                for p in PHASES
                if p in highest
            ],
            series=self._series(rows),
        )

    def _categories(self) -> tuple[str, ...]:
        return CATEGORIES if self._allocator.total_bytes() is not None else CATEGORIES[:-1]

    def _by_category(self, row: Row) -> dict[str, int]:
        return dict(zip(self._categories(), row.by_category, strict=False))

    def _series(self, rows: list[Row]) -> dict[str, list[float]]:
        rows = thin(rows, _SERIES_POINTS)
        series: dict[str, list[float]] = {"seconds": [row.seconds for row in rows]}
        for at, category in enumerate(self._categories()):
            series[category] = [row.by_category[at] for row in rows]
        return series

    def _include_older_states(self) -> None:
        """Training holds at least its states: if they are older than this meter, they count."""
        total = self._allocator.total_bytes()
        if total is not None:
            states = sum(self._held.bytes().values())
            self._baseline_bytes = min(self._baseline_bytes, total - states)


class HeldStates:
    """The model's states: (category, tensor) by iteration.

    Parameters are remembered as they are at the beginning, since `fully_shard` swaps in the
    gathered ones during a step. What the optimizer updates and the module does not have (fp32
    master weights) is optimizer state.
    """

    def __init__(
        self, device: torch.device, module: nn.Module | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:  # fmt: skip
        self.device = device
        # ZeroRedundancyOptimizer keeps the real one inside.
        self._optimizer = getattr(optimizer, "optim", optimizer)
        self._parameters = list(module.parameters()) if module else []
        self._buffers = list(module.buffers()) if module else []
        groups = self._optimizer.param_groups if self._optimizer else []
        self._updated = [p for group in groups for p in group["params"]]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.weights()
        yield from self.gradients()
        yield from self.optimizer_state()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters and buffers."""
        for parameter in self._parameters:
            yield "parameters", parameter
        for buffer in self._buffers:
            yield "buffers", buffer

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Those that exist."""
        for parameter in self._parameters:
            if parameter.grad is not None:
                yield "gradients", parameter.grad
        for parameter in self._updated:
            if parameter.grad is not None:
                yield "gradients", parameter.grad

    def optimizer_state(self) -> Iterator[tuple[str, Tensor]]:
        """Moments, step counters (4 bytes for each tensor), master weights."""
        for parameter in self._updated:
            yield "optimizer", parameter
        for state in self._optimizer.state.values() if self._optimizer else ():
            for value in state.values():
                if isinstance(value, Tensor):
                    yield "optimizer", value

    def bytes(self) -> dict[str, int]:
        """Bytes of all of them by category."""
        return dict.fromkeys(_STATES, 0) | self.count(self, set())

    def count(self, held: Iterable[tuple[str, Tensor]], claimed: set[int]) -> dict[str, int]:
        """Bytes by category, every storage once, under the first category that claims it.

        Args:
            claimed: storages that are counted already, to which these are added.
        """
        totals: dict[str, int] = defaultdict(int)
        for category, tensor in held:
            storage = storage_of(tensor, self.device.type)
            if storage is not None and storage._cdata not in claimed:
                claimed.add(storage._cdata)
                totals[category] += storage.nbytes()
        return totals


def thin(rows: list[Row], points: int) -> list[Row]:
    """At most `points` rows, in order: the highest and the lowest of each of equal parts.

    So the peak of the whole stays, and every local one that is the highest within 1 % of the rows.
    """
    if len(rows) <= points:
        return rows
    parts = points // 2
    kept = []
    for part in range(parts):
        some = rows[len(rows) * part // parts : len(rows) * (part + 1) // parts]
        ends = {id(row): row for row in (max(some, key=_total), min(some, key=_total))}
        kept += sorted(ends.values(), key=lambda row: row.seconds)
    return kept


def _total(row: Row) -> int:
    return row.total
