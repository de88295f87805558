"""Reports that nobody measured, for tests of plots and panels only. Every number is made up."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from parallab.catalog import strategy
from parallab.errors import RankError
from parallab.plan import Plan
from parallab.predict.communication import payload_per_step, wire_bytes
from parallab.predict.memory import model_states
from parallab.progress import Gauge, Progress
from parallab.report import CATEGORIES, Communication, Memory, PhaseMemory, Rank, Report, Step
from parallab.spec import Model

POINTS = 90


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
        Communication(op, "dp", phase.get(op, "backward"), model.layers, payload,
                      wire_bytes(op, payload, plan.devices, rank), 0.01)
        for op, payload in payload_per_step(model, plan).items()
    ]  # fmt: skip
    loss = None if strategy(plan.strategy).data == "dp" and rank else 5.6 * math.exp(-step / 40)
    return Step(step, loss, 0.1 + 0.05 * traced, traced, memory, communication)


def fake_report(
    name: str = "zero3", devices: int = 4, steps: int = 8, model: str = "mini", device: str = "cpu"
) -> Report:
    """A Report of steps that never ran."""
    the_model, plan = Model(model), Plan(name, devices=devices, batch=2 * devices)
    ranks = [
        Rank(r, {"dp": r, "pp": 0, "tp": 0}, device if device == "cpu" else f"{device}:{r}", "fake",
             [fake_step(the_model, plan, r, s) for s in range(steps)])
        for r in range(devices)
    ]  # fmt: skip
    return Report("measured", the_model, plan, {"fake": True}, ranks)


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
        made = self._kinds[key]
        loss = None if made.loss is None else 5.6 * math.exp(-step / 40)
        return replace(made, step=step, loss=loss)

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
