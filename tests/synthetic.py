"""Reports that nobody measured, for tests of plots and panels only. Every number is made up."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

from parallab.catalog import strategy
from parallab.errors import RankError
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.predict.communication import payload_per_step, receivers, wire_bytes
from parallab.predict.memory import model_states
from parallab.progress import Gauge, Progress
from parallab.report import (
    CATEGORIES,
    Communication,
    Memory,
    PhaseMemory,
    Rank,
    Report,
    Span,
    Step,
)
from parallab.schedules import Pass, Slot, orders, planned
from parallab.stages import rank_of_stage, stage_count, stage_indices

POINTS = 90
PASS_SECONDS = {"forward": 1.0, "backward": 2.0, "input": 1.1, "weight": 0.9}
# When a run begins, and how much later each next rank begins a step.
EPOCH, LATER = 1.7e9, 0.0005


def fake_step(model: Model, plan: Plan, rank: int, step: int, trace_every: int = 5) -> Step:
    """A step that looks like one: it never ran."""
    traced = step == 0 or step % trace_every == 1
    states = model_states(model, plan, rank)
    gradients = states["gradients"]
    if not step:
        states = {**states, "optimizer": 0}
    whole = model.parameters * plan.element_bytes
    activations = 60 * plan.micro_batch * plan.seq * model.hidden * model.layers
    series: dict[str, list[float]] = {"seconds": []} | {c: [] for c in CATEGORIES}
    for i in range(POINTS + 1):
        f = i / POINTS
        wave = 1 - abs(2 * f / 0.9 - 1) if f < 0.9 else 0.0
        now = dict.fromkeys(CATEGORIES, 0.0)
        now["parameters"] = states["parameters"]
        now["optimizer"] = (
            states["optimizer"] if f < 0.9 else model_states(model, plan)["optimizer"]
        )
        now["gradients"] = gradients * min(1, max(0, 2.2 * (f - 0.45)))
        now["activations"] = activations * wave * (1 + 0.04 * rank)
        now["buffers"] = whole * 0.01
        now["unsharded"] = whole / 6 * (i % 5 < 3) if plan.zero == 3 and f < 0.9 else 0
        now["communication"] = whole / 8 if plan.devices > 1 and 0.4 < f < 0.9 else 0
        now["temporary"] = activations * 0.1 * (i % 4 < 2)
        now["workspace"] = whole * 0.05
        series["seconds"].append(0.09 * f)
        for category in CATEGORIES:
            series[category].append(int(now[category]))
    totals = [sum(series[c][i] for c in CATEGORIES) for i in range(POINTS + 1)]
    peak = totals.index(max(totals))
    at_peak = {c: int(series[c][peak]) for c in CATEGORIES}
    memory = Memory(
        int(totals[peak]), at_peak if traced else {}, {**states, "gradients": gradients},
        [PhaseMemory("backward", int(totals[peak]), at_peak if traced else {})],
        series if traced else {},
    )  # fmt: skip
    phase = {"all_gather": "forward", "broadcast": "forward", "scatter": "forward"}
    communication = [
        Communication(op, axis, phase.get(op, "backward"), model.layers, payload,
                      wire_bytes(op, payload, getattr(plan, axis), rank), 0.01)
        for (op, axis), payload in payload_per_step(model, plan, plan.coordinates(rank)).items()
    ]  # fmt: skip
    slow = 1 + 0.5 * traced + (step == 0)
    spans = fake_spans(plan, rank, slow)
    memory.marks = fake_marks(spans, sum(states.values()), activations // plan.pp)
    return Step(step, fake_loss(plan, rank, step), 0.1 * slow, traced, memory, communication, spans,
                EPOCH + 0.3 * step + LATER * rank, fake_traffic(model, plan, rank))  # fmt: skip


def fake_loss(plan: Plan, rank: int, step: int) -> float | None:
    """On the ranks of the last stage, of classic data parallelism on rank 0 only."""
    last = rank_of_stage(plan.schedule, stage_count(plan.pp, plan.schedule) - 1, plan.pp)
    silent = strategy(plan.strategy).data == "dp" and rank
    if silent or plan.coordinates(rank)["pp"] != last:
        return None
    return 5.6 * math.exp(-step / 40)


@cache
def fake_passes(plan: Plan) -> list[list[Slot]]:
    """The passes of each pipeline rank, in seconds since the step began; no two take as long."""

    def seconds(work: Pass) -> float:
        wave = 1 + 0.04 * ((7 * work.stage + 3 * work.micro_batch) % 5)
        return PASS_SECONDS[work.kind] * wave

    if plan.pp > 1:
        slots = planned(orders(plan.schedule, plan.pp, plan.micro_batches), seconds)
    else:
        kinds = ("forward", "backward")
        works = [Pass(kind, 0, i) for i in range(plan.micro_batches) for kind in kinds]
        ends = [sum(map(seconds, works[: i + 1])) for i in range(len(works))]
        slots = [[Slot(w, e - seconds(w), e) for w, e in zip(works, ends, strict=True)]]
    scale = 0.085 / max(slot.end for row in slots for slot in row)
    return [
        [Slot(work, 0.003 + scale * start, 0.003 + scale * end) for work, start, end in row]
        for row in slots
    ]


def fake_spans(plan: Plan, rank: int, slow: float = 1) -> list[Span]:
    """A rank's passes, what it says between and under them, and its optimizer."""
    coords = plan.coordinates(rank)
    passes, told = [], []
    for work, start, end in fake_passes(plan)[coords["pp"]]:
        kind = "backward" if work.kind == "input" else work.kind
        passes.append(Span(kind, work.stage, work.micro_batch, start, end))
        length = end - start
        parts = [(0.3, 0.5), (0.8, 1.0)] * (plan.tp > 1 and kind != "weight")
        parts += [(1.0, 1.08)] * (plan.pp > 1 and kind != "weight")
        parts += [(0.45, 0.75), (0.8, 1.1)] * (plan.dp > 1 and plan.pp == 1 and kind == "backward")
        told += [
            Span("communication", work.stage, work.micro_batch, start + a * length,
                 start + b * length)
            for a, b in parts
        ]  # fmt: skip
    if plan.dp > 1 and plan.pp > 1:
        told.append(Span("communication", 0, 0, 0.0885, 0.0925))
    spans = [*passes, Span("optimizer", 0, 0, 0.093, 0.0985), *told]
    # Later ranks began later, so by their own clocks the same moment is earlier.
    late = LATER * rank
    return [
        replace(s, start=slow * s.start - late + 0.004, end=slow * s.end - late + 0.004)
        for s in spans
    ]


def fake_marks(spans: list[Span], states: int, activations: int) -> dict[str, list[float]]:
    """Each forward pass keeps its activations, each backward pass frees them."""
    marks: dict[str, list[float]] = {"seconds": [0.0], "bytes": [states]}
    change = {"forward": activations, "backward": -activations}
    for span in spans:
        marks["seconds"] += [span.start, span.end]
        now = marks["bytes"][-1]
        marks["bytes"] += [now, now + change.get(span.kind, 0)]
        if span.kind == "optimizer":
            break
    return marks


def fake_traffic(model: Model, plan: Plan, rank: int) -> dict[int, int]:
    """Bytes to each other rank, on ideal rings and between neighbouring stages."""
    coords = plan.coordinates(rank)
    traffic: dict[int, int] = defaultdict(int)
    for (op, axis), payload in payload_per_step(model, plan, coords).items():
        others = {a: v for a, v in coords.items() if a != axis}
        group = [r for r in range(plan.devices) if others.items() <= plan.coordinates(r).items()]
        n, me = len(group), group.index(rank)
        if op == "send":
            to = _neighbours(plan, coords["pp"])
            for neighbour in to:
                traffic[group[neighbour]] += payload // len(to)
            continue
        for offset, size in receivers(op, wire_bytes(op, payload, n, me), n, me).items():
            traffic[group[(me + offset) % n]] += size
    return dict(traffic)


def _neighbours(plan: Plan, pipeline_rank: int) -> list[int]:
    """The pipeline ranks that this one sends to, once for each boundary of its stages."""
    stages = stage_count(plan.pp, plan.schedule)
    held = stage_indices(plan.schedule, pipeline_rank, plan.pp, stages)
    beside = [s + d for s in held for d in (-1, 1) if 0 <= s + d < stages]
    ranks = [rank_of_stage(plan.schedule, s, plan.pp) for s in beside]
    return [r for r in ranks if r != pipeline_rank]


def fake_report(
    name: str = "zero3",
    devices: int = 4,
    steps: int = 8,
    model: str | Model = "mini",
    device: str = "cpu",
    **options: Any,
) -> Report:
    """A Report of steps that never ran; `options` are the Plan's."""
    the_model = Model(model) if isinstance(model, str) else model
    if strategy(name).axes in ((), ("dp",)):
        options.setdefault("batch", 2 * devices)
    plan = Plan(name, devices=devices, **options)
    ranks = [
        Rank(r, plan.coordinates(r), device if device == "cpu" else f"{device}:{r}", "fake",
             [fake_step(the_model, plan, r, s) for s in range(steps)])
        for r in range(devices)
    ]  # fmt: skip
    return Report("measured", the_model, plan, {"fake": True}, ranks)


def fake_prediction(model: Model, plan: Plan, source: str = "predicted") -> Report:
    """A Report of theory that follows from no formula."""
    ranks = []
    for rank in range(plan.devices):
        step = fake_step(model, plan, rank, 1)
        at_peak = {**step.memory.at_peak, "workspace": 0}
        memory = Memory(sum(at_peak.values()), at_peak, step.memory.states)
        rows = [replace(row, seconds=None) for row in step.communication]
        step = Step(0, None, None, False, memory, rows)
        ranks.append(Rank(rank, plan.coordinates(rank), "cpu", "", [step]))
    return Report(source, model, plan, {}, ranks)


class FakeRun:
    """A run that makes up a step every `polls_per_step` polls."""

    def __init__(
        self,
        model: Model,
        plan: Plan,
        steps: int,
        polls_per_step: int = 2,
        fail_at: int | None = None,
    ) -> None:
        self.model, self.plan, self.total_steps = model, plan, steps
        self._polls_per_step, self._fail_at = polls_per_step, fail_at
        self._polls = 0
        self._made: list[list[Step]] = []
        self._kinds: dict[tuple[int, int], Step] = {}
        self._stop = threading.Event()
        self.failed = False

    def poll(self) -> Progress:
        self._polls += 1
        done = len(self._made)
        if self._fail_at is not None and done >= self._fail_at:
            self.failed = True
            return Progress("failed", "Rank 2 failed.")
        if self._stop.is_set():
            return Progress("stopped", f"Stopped after {done} steps.")
        now = int(1e6 * (2 + math.sin(self._polls / 3)))
        gauges = [Gauge(r, done, "backward", now + 10_000 * r) for r in range(self.plan.devices)]
        if self._polls % self._polls_per_step:
            return Progress("running", f"Step {done + 1} of {self.total_steps}.", [], gauges)
        new = [self._step(rank, done) for rank in range(self.plan.devices)]
        self._made.append(new)
        state = "done" if done + 1 == self.total_steps else "running"
        return Progress(state, f"Step {done + 1} of {self.total_steps}.", [new], gauges)

    def _step(self, rank: int, step: int) -> Step:
        """Real ranks make their steps elsewhere, so here they cost next to nothing."""
        key = (rank, step if step < 2 else 2 + (step % 5 == 1))
        if key not in self._kinds:
            self._kinds[key] = fake_step(self.model, self.plan, rank, step)
        loss = fake_loss(self.plan, rank, step)
        begin = EPOCH + 0.3 * step + LATER * rank
        return replace(self._kinds[key], step=step, loss=loss, begin=begin)

    def stop(self) -> None:
        self._stop.set()

    def result(self, timeout: float | None = None) -> Report:
        if self.failed:
            raise RankError(
                "Rank 2 failed in step 3: it ran out of memory <8 GiB>.", 2, "Traceback: fake"
            )
        ranks = [
            Rank(r, {}, "cpu", "fake", [step[r] for step in self._made])
            for r in range(self.plan.devices)
        ]
        return Report("measured", self.model, self.plan, {"fake": True}, ranks)


class FakeRunner:
    """What `parallab.panels.engines.Engines` is to a panel, without engines."""

    source = "measured"
    replayed = None
    kernels = "cpu"

    def __init__(self, max_devices: int = 8, **run_options: int) -> None:
        self.max_devices = max_devices
        self.run_options = run_options
        self.released = 0
        self.closed = False
        self.gate: threading.Event | None = None

    @contextmanager
    def claim(self, devices: int, say: Callable[[str], None]) -> Iterator[FakeRunner]:
        say(f"Starting {devices} engines …")
        if self.gate:
            self.gate.wait(20)
        yield self

    def submit(self, model: Model, plan: Plan, steps: int) -> FakeRun:
        return FakeRun(model, plan, steps, **self.run_options)

    def devices(self, count: int) -> list[str]:
        return ["cpu"] * count

    def room(self) -> tuple[int, bool]:
        return 8 * 2**30, True

    def release(self) -> str:
        self.released += 1
        return "Released."

    def close(self) -> None:
        self.closed = True
