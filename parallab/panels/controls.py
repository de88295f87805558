"""What to run: the inputs of the run panel, and which of them cannot work."""

from __future__ import annotations

import html
import threading
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets

from parallab.catalog import STRATEGIES
from parallab.cluster.room import check_fits
from parallab.errors import ParallabError
from parallab.panels.engines import Runner
from parallab.panels.parts import Choice, field
from parallab.plan import CHOICES, MAX_STEPS, Plan, why_not
from parallab.spec import PRESETS, Model

DEVICES = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
TITLES = {"precision": "Precision", "recompute": "Recompute", "optimizer": "Optimizer"}
NUMBERS = {
    "batch": ("Batch", "sequences", 8),
    "seq": ("Sequence", "tokens", 128),
    "micro_batches": ("Micro-batches", "", 1),
    "steps": ("Steps", "", 10),
}


class Controls:
    """All inputs, and the plan that they make.

    Attributes:
        header, fields: the widgets, for the top and for the left of a panel.
        reason: why the present choice cannot run, None where it can.
    """

    def __init__(self, runner: Runner, changed: Callable[[], None]) -> None:
        self._runner, self._tell = runner, changed
        self._lock = threading.RLock()
        self._locked = False
        full = widgets.Layout(width="100%")
        self._models = {name: Model(name) for name in PRESETS}
        self.reason: str | None = None
        hints = {name: row.idea for name, row in STRATEGIES.items()}
        titles = {name: row.title for name, row in STRATEGIES.items()}
        self._strategy = Choice("strategy", titles, "ddp", self._strategy_chosen, hints)
        counts = {n: str(n) for n in DEVICES if n <= runner.max_devices}
        first = max(n for n in counts if n <= 4)
        self._devices = Choice("devices", counts, first, self._devices_chosen)
        self._wish = first
        self._model = widgets.Dropdown(options=self._model_options(), value="mini", layout=full)
        self._model.add_class("pl-model")
        self._model.add_class(f"pl-model-{id(self)}")
        self._named: dict[str, Choice[str]] = {
            name: Choice(name, {v: v for v in values}, values[0], self.refresh)
            for name, values in CHOICES.items()
        }
        self._numbers = {
            name: widgets.BoundedIntText(
                value=value, min=1, max=MAX_STEPS, continuous_update=False, layout=full
            )
            for name, (_, _, value) in NUMBERS.items()
        }
        self._idea, self._grey = widgets.HTML(), widgets.HTML()
        self.header = field("Strategy", widgets.VBox([self._strategy.widget, self._idea]))
        self.fields = self._lay_out()
        for control in (self._model, *self._numbers.values()):
            control.observe(lambda _: self.refresh(), "value")
        self.refresh()

    def _lay_out(self) -> widgets.Box:
        boxes = [
            field("Model", self._model, wide=True),
            field("Devices", self._devices.widget, wide=True),
        ]
        boxes += [field(NUMBERS[n][0], box, NUMBERS[n][1]) for n, box in self._numbers.items()]
        boxes += [field(TITLES[n], choice.widget) for n, choice in self._named.items()]
        grid = widgets.Box([*boxes, self._grey])
        grid.add_class("pl-fields")
        return grid

    @property
    def model(self) -> Model:
        """The chosen model."""
        return self._models[self._model.value]

    @property
    def plan(self) -> Plan:
        """The chosen plan.

        Raises:
            PlanError: it cannot work.
        """
        return Plan(**self._choices())

    @property
    def steps(self) -> int:
        """How many steps to run."""
        return int(self._numbers["steps"].value)

    def _choices(self) -> dict[str, Any]:
        numbers = {n: int(box.value) for n, box in self._numbers.items() if n != "steps"}
        named = {name: choice.value for name, choice in self._named.items()}
        return {
            "strategy": self._strategy.value, "devices": self._devices.value, **numbers, **named
        }  # fmt: skip

    def show(self, model: Model, plan: Plan, steps: int) -> None:
        """Sets every input to what is about to run."""
        with self._lock:
            self._models[model.name] = model
            self._model.options = self._model_options()
            self._model.value = model.name
            self._strategy.value, self._devices.value = plan.strategy, plan.devices
            for name, choice in self._named.items():
                choice.value = getattr(plan, name)
            for name, box in self._numbers.items():
                box.value = steps if name == "steps" else getattr(plan, name)
            self.refresh()

    def lock(self, locked: bool) -> None:
        """Greys out everything while a run is under way."""
        with self._lock:
            self._locked = locked
            choices: list[Choice[Any]] = [self._strategy, self._devices, *self._named.values()]
            for choice in choices:
                choice.lock(locked)
            for control in (self._model, *self._numbers.values()):
                control.disabled = locked

    def refresh(self) -> None:
        """Finds out anew what can work, and says so."""
        with self._lock:
            model, now = self.model, self._choices()
            choices: dict[str, Choice[Any]] = {"devices": self._devices, **self._named}
            for name, choice in choices.items():
                choice.refuse({v: why_not(model, **{**now, name: v}) for v in choice.options})
            self._strategy.refuse({s: self._why_no_strategy(s) for s in self._strategy.options})
            row = STRATEGIES[self._strategy.value]
            self._idea.value = (
                f'<div class="pl-idea">{html.escape(row.idea)} <b>{html.escape(row.source)}</b>; '
                f"implementation: {html.escape(row.implementation)}.</div>"
            )
            room = self._runner.room()
            self.reason = why_not(model, **now) or self._why_too_big(model, *room)
            self._grey_big_models(*room)
        self._tell()

    def _why_no_strategy(self, name: str) -> str | None:
        """A strategy is refused where no number of devices would do; the last reason stands."""
        now, reason = {**self._choices(), "strategy": name}, None
        for devices in self._devices.options:
            reason = why_not(self.model, **{**now, "devices": devices})
            if reason is None:
                return None
        return reason

    def _devices_chosen(self) -> None:
        self._wish = self._devices.value
        self.refresh()

    def _strategy_chosen(self) -> None:
        """Moves to the number of devices nearest to the last wish that the strategy can use."""
        now = self._choices()
        near = sorted(self._devices.options, key=lambda n: (abs(n - self._wish), -n))
        able = [n for n in near if not why_not(self.model, **{**now, "devices": n})]
        if able:
            self._devices.value = able[0]
        self.refresh()

    def _why_too_big(self, model: Model, free_bytes: int, shared: bool) -> str | None:
        try:
            check_fits(model, self.plan, free_bytes, shared)
        except ParallabError as error:
            return str(error)
        return None

    def _grey_big_models(self, free_bytes: int, shared: bool) -> None:
        """The options of a drop-down are not widgets: only a style can grey them."""
        names = [name for _, name in self._model.options]
        big = [
            place
            for place, name in enumerate(names, 1)
            if self._why_too_big(self._models[name], free_bytes, shared)
        ]
        self._grey.value = "".join(
            f"<style>.pl-model-{id(self)} option:nth-child({i}) {{ color: #a8a8a8; }}</style>"
            for i in big
        )

    def _model_options(self) -> list[tuple[str, str]]:
        by_size = sorted(self._models.values(), key=lambda m: m.parameters)
        return [(f"{m.name} · {_count(m.parameters)} parameters", m.name) for m in by_size]


def _count(parameters: int) -> str:
    for size, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= size:
            return f"{parameters / size:.3g} {name}"
    return str(parameters)
