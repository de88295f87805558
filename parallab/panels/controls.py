"""What to run: the inputs of the run panel, and which of them cannot work."""

from __future__ import annotations

import functools
import html
import threading
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets

from parallab.catalog import STAGES, STRATEGIES
from parallab.cluster.room import check_fits, needed_bytes
from parallab.errors import ParallabError
from parallab.models.spec import Model
from parallab.panels.engines import Runner
from parallab.panels.menu import ModelMenu
from parallab.panels.parts import Choice, Look, label
from parallab.panels.proposals import (
    AXES,
    OPTIONS,
    PLAIN,
    Choices,
    ask,
    divisors,
    given_way,
    matters,
    propose,
    usual_micro_batches,
    wish_of,
)
from parallab.panels.words import HINTS, LABELS, in_short
from parallab.plan import CHOICES, MAX_STEPS, Plan, why_not

DEVICES = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
FIRST_DEVICES, FIRST_MODEL, FIRST_BATCH, FIRST_STEPS = 4, "mini", 8, 10
# Weight, gradient and optimizer state per parameter, in fp32 and in bf16 alike
# (arXiv:1910.02054, section 3.1).
STATE_BYTES = {"adamw": 16, "sgd": 8}
# Which inputs stand where: how the model is split, and what a step is.
SPLIT = ("devices", *AXES, "zero", "sequence_parallel")
# What nobody means to type; the batch must hold all micro-batches of all ranks.
MOST = {"steps": MAX_STEPS, "micro_batches": 4096}
NUMBERS = ("batch", "seq", "micro_batches", "steps")
WIDE = ("model", "schedule")
# Shown only where they matter.
SOMETIMES = (*AXES, *OPTIONS, "micro_batches")


class Controls:
    """All inputs, and the plan that they make.

    Args:
        runner: how many devices there are, and how much memory.
        changed: called after every choice.

    Attributes:
        header, fields: the widgets, for the top and for the left of a panel.
        reason: why the present choice cannot run, None where it can.
        notice: what could not stay as it was asked for.
        numbers: which numbers it asks for.
    """

    numbers: tuple[str, ...] = NUMBERS

    def __init__(self, runner: Runner, look: Look, changed: Callable[[], None]) -> None:
        self._runner, self._look, self._tell = runner, look, changed
        self._lock = threading.RLock()
        self._showing = False
        self._counts = sorted({*(n for n in DEVICES if n < runner.max_devices), runner.max_devices})
        usual = {name: getattr(Plan(), name) for name in ("strategy", *PLAIN)}
        devices = min(FIRST_DEVICES, runner.max_devices)
        self._wishes: Choices = {**usual, "devices": devices, "batch": FIRST_BATCH}
        self._menu = ModelMenu(FIRST_MODEL)
        self._now, self.reason = propose(self.model, self._wishes, usual, self._counts)
        self.notice = ""
        self._choices = {name: self._choice(name, values) for name, values in _options().items()}
        self._menu.widget.add_class("pl-model")
        self._menu.widget.add_class(f"pl-model-{id(self)}")
        full = widgets.Layout(width="100%")
        self._numbers = {name: self._number(name, full) for name in self.numbers}
        self._idea, self._grey = look.text(), look.text()
        self._lay_out()
        self._menu.widget.observe(lambda _: self._model_chosen(), "value")
        for name, box in self._numbers.items():
            box.observe(functools.partial(self._typed, name), "value")
        self.refresh()

    def _number(self, name: str, layout: widgets.Layout) -> widgets.ValueWidget:
        return widgets.BoundedIntText(
            value=self._now.get(name, FIRST_STEPS), min=1, max=MOST.get(name, 2**20),
            continuous_update=False, layout=layout,
        )  # fmt: skip

    def _choice(self, name: str, values: tuple[Any, ...]) -> Choice[Any]:
        hints = {s: row.idea for s, row in STRATEGIES.items()} if name == "strategy" else None
        titles = {v: STRATEGIES[v].title if hints else in_short(v) for v in values}
        now = self._now.get(name, values[0])
        return Choice(
            self._look, name, titles, now, functools.partial(self._clicked, name),
            hints or HINTS.get(name),
        )  # fmt: skip

    def _lay_out(self) -> None:
        inputs = {"model": self._menu.widget, **self._numbers}
        inputs |= {name: choice.widget for name, choice in self._choices.items()}
        self._boxes = {}
        for name, control in inputs.items():
            own = widgets.Layout() if name in SOMETIMES else None
            self._boxes[name] = self._look.field(LABELS[name][0], control, LABELS[name][1], own)
            if name in WIDE:
                self._boxes[name].add_class("pl-wide")
        plain = self._look.layout
        split = widgets.Box([self._boxes[name] for name in SPLIT], layout=plain)
        split.add_class("pl-split")
        strategy = self._boxes["strategy"]
        self.header = widgets.VBox([strategy, self._idea, split], layout=plain)
        left = ("model", *self.numbers, *CHOICES)
        self.fields = widgets.Box([*(self._boxes[name] for name in left), self._grey], layout=plain)
        self.fields.add_class("pl-fields")

    @property
    def model(self) -> Model:
        """The chosen model."""
        return self._menu.model

    @property
    def plan(self) -> Plan:
        """The chosen plan.

        Raises:
            PlanError: it cannot work.
        """
        return Plan(**self._now)

    @property
    def steps(self) -> int:
        """How many steps to run."""
        return int(self._numbers["steps"].value) if "steps" in self._numbers else FIRST_STEPS

    # What a person chooses.

    def _clicked(self, name: str) -> None:
        self._choose(name, self._choices[name].value)

    def _typed(self, name: str, change: dict[str, Any]) -> None:
        with self._lock:
            if not self._showing and name in self._now:
                self._choose(name, int(change["new"]))

    def _choose(self, name: str, value: Any) -> None:
        with self._lock:
            self._wishes, firm = ask(self._now, self._wishes, name, value)
            if name == "micro_batches" and value == usual_micro_batches(self._now):
                del self._wishes[wish_of(name, self._now)]
            self._now, _ = propose(self.model, self._wishes, firm, self._counts)
            self.refresh()

    def _model_chosen(self) -> None:
        with self._lock:
            if not self._showing:
                self._now, _ = self._proposed_for(self.model)
                self.refresh()

    def _proposed_for(self, model: Model) -> tuple[Choices, str | None]:
        """The present plan as it would be for a model, on other devices where it must be."""
        firm = {name: self._now[name] for name in ("strategy", *PLAIN)}
        firm["seq"] = min(self._wishes.get("seq", firm["seq"]), model.context)
        return propose(model, self._wishes, firm, self._counts)

    # What a panel does with them.

    def show(self, model: Model, plan: Plan, steps: int) -> None:
        """Sets every input to what is about to run."""
        with self._lock:
            now = {n: getattr(plan, n) for n in ("strategy", "devices", "batch", *PLAIN, *AXES)}
            now |= {name: getattr(plan, name) for name in matters(now)}
            now = {n: v for n, v in now.items() if n not in AXES or n in matters(now)}
            if (model, now) != (self.model, self._now):
                self._now = now
                self._wish_for_all_of_it()
            self._show_model(model)
            if "steps" in self._numbers:
                self._numbers["steps"].value = steps
            self.refresh()

    def _wish_for_all_of_it(self) -> None:
        now = {wish_of(name, self._now): value for name, value in self._now.items()}
        if self._now.get("micro_batches") == usual_micro_batches(self._now):
            del now[wish_of("micro_batches", self._now)]
            self._wishes.pop(wish_of("micro_batches", self._now), None)
        kept = {n: v for n, v in self._wishes.items() if n not in now and n not in AXES}
        self._wishes = {**kept, **now}

    def _show_model(self, model: Model) -> None:
        self._showing = True
        try:
            self._menu.choose(model)
        finally:
            self._showing = False

    def lock(self, locked: bool) -> None:
        """Greys out everything while a run is under way."""
        with self._lock:
            for choice in self._choices.values():
                choice.lock(locked)
            for control in (self._menu.widget, *self._numbers.values()):
                control.disabled = locked

    def refresh(self) -> None:
        """Shows the present choices, and finds out anew what can work."""
        with self._lock:
            self._showing = True
            try:
                self._show_choices()
            finally:
                self._showing = False
            self._refuse()
            room = self._runner.room()
            self.reason = why_not(self.model, **self._now) or self._why_too_big(*room)
            self.notice = _in_words(given_way(self._wishes, self._now))
            self._tell()
            # Last, since this is what takes time.
            self._grey_big_models(*room)

    def _refuse(self) -> None:
        """Greys out what cannot work."""
        now, wishes = self._now, self._wishes
        model, offered = self.model, {name: c for name, c in self._choices.items() if name in now}
        reasons = {
            name: {v: self._why_refused(model, now, wishes, name, v) for v in choice.options}
            for name, choice in offered.items()
        }
        if self._now is now:
            for name, choice in offered.items():
                choice.refuse(reasons[name])

    def _show_choices(self) -> None:
        now = self._now
        row, devices = STRATEGIES[now["strategy"]], now["devices"]
        self._choices["devices"].offer({n: str(n) for n in sorted({*self._counts, devices})})
        for axis in AXES:
            if axis in now:
                self._choices[axis].offer({n: str(n) for n in divisors(devices)})
        controls: dict[str, Any] = {**self._choices, **self._numbers}
        for name, control in controls.items():
            if name in now:
                control.value = now[name]
            if name in SOMETIMES:
                self._boxes[name].layout.display = None if name in now else "none"
        product = "= " + " × ".join(row.axes) if row.axes else ""
        self._boxes["devices"].children[0].value = label(LABELS["devices"][0], product)
        self._idea.value = (
            f'<div class="pl-idea">{html.escape(row.idea)} <b>{html.escape(row.source)}</b>; '
            f"implementation: {html.escape(row.implementation)}.</div>"
        )

    def _why_refused(
        self, model: Model, now: Choices, wishes: Choices, name: str, value: Any
    ) -> str | None:
        """An option is refused where nothing that may give way would make it work."""
        wishes, firm = ask(now, wishes, name, value)
        return propose(model, wishes, firm, self._counts)[1]

    # What is too big for the machine.

    def _why_too_big(self, free_bytes: int, shared: bool) -> str | None:
        try:
            check_fits(self.model, self.plan, free_bytes, shared)
        except ParallabError as error:
            return str(error)
        return None

    def _grey_big_models(self, free_bytes: int, shared: bool) -> None:
        """The options of a drop-down are not widgets: only a style can grey them."""
        self._grey.value = "".join(
            f"<style>.pl-model-{id(self)} option:nth-child({place}) {{ color: #a8a8a8; }}</style>"
            for place, model in enumerate(self._menu.models, 1)
            if not self._runs(model, free_bytes, shared)
        )

    def _runs(self, model: Model, free_bytes: int, shared: bool) -> bool:
        choices, reason = self._proposed_for(model)
        if reason:
            return False
        plan = Plan(**choices)
        # All ranks together hold every state at least once: most models need no closer look.
        least = model.parameters * STATE_BYTES[plan.optimizer] / (1 if shared else plan.devices)
        return least <= free_bytes and _needed_bytes(model, plan, shared) <= free_bytes


def _options() -> dict[str, tuple[Any, ...]]:
    """Every input that is one of several buttons; devices and degrees are offered later."""
    return {
        "strategy": tuple(STRATEGIES), "devices": (1,), **dict.fromkeys(AXES, (1,)),
        "zero": tuple(range(len(STAGES))), "sequence_parallel": (False, True), **CHOICES,
    }  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _needed_bytes(model: Model, plan: Plan, shared: bool) -> int:
    return needed_bytes(model, plan, shared)


def _in_words(changes: list[tuple[str, Any, Any]]) -> str:
    words = ", ".join(
        f"{LABELS[name][0]} {in_short(wish)} → {in_short(choice)}" for name, wish, choice in changes
    )
    return f"Adjusted to your choice: {words}." if words else ""
