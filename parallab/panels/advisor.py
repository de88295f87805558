"""The advisor: which plans fit a model on some hardware, ranked, with the reason of each."""

from __future__ import annotations

import html
from collections.abc import Callable
from functools import partial
from typing import Any

import ipywidgets as widgets

from parallab.advise.advice import Advice, Option, cautions, describe
from parallab.models.spec import Model
from parallab.panels.cards import gpu_options, network_options
from parallab.panels.engines import UNLIMITED_BYTES, Runner
from parallab.panels.menu import ModelMenu
from parallab.panels.parts import Choice, Look, close_all, error_words
from parallab.panels.style import STYLE
from parallab.panels.worker import Latest
from parallab.plan import CHOICES, Plan
from parallab.plots.style import in_words, three_digits
from parallab.units import percent

HERE = "here"
FIRST_MODEL, FIRST_GPU = "llama-3.1-8b", "h100"
MAX_ROWS = 8
# Called with a model and a plan, and with the GPU where one is known.
Take = Callable[[Model, Plan, str | None], None]
WhyNot = Callable[[Model, Plan], str | None]


class Advisor:
    """Hardware and model above, the plans that fit below, and why others do not.

    Args:
        runner: what "this machine" is.
        run: takes a plan to the run panel.
        why_not: why a plan cannot run here, None where it can.
        calculate: takes a plan to the calculator.

    Attributes:
        widget: what a notebook shows.
        advice: the latest answer, None before the first.
    """

    def __init__(self, runner: Runner, run: Take, why_not: WhyNot, calculate: Take) -> None:
        self._runner, self._run, self._why_not, self._calculate = runner, run, why_not, calculate
        self.advice: Advice | None = None
        self._look = look = Look()
        self._worker, self._hands = Latest(self._show_error), Latest(self._show_error)
        self._build_inputs(look)
        self._button = look.button("Advise")
        self._button.add_class("pl-action")
        self._button.add_class("pl-advise")
        self._button.button_style = "success"
        self._button.on_click(lambda _: self.ask())
        self._status, self._error = look.text(), look.text()
        self._rule, self._others = look.text(), look.text()
        head = ("", "plan", "peak, predicted", "step, estimated", "why")
        self._head = look.text(_cells(head, "pl-option-head"))
        self._rows: list[_Row] = []
        self._table = widgets.VBox(layout=look.layout)
        self._table.add_class("pl-options")
        self.widget = self._lay_out()
        self._hardware_chosen()

    def _build_inputs(self, look: Look) -> None:
        full = widgets.Layout(width="100%")
        self._menu = ModelMenu(FIRST_MODEL)
        here = [] if self._runner.replayed is not None else [("this machine", HERE)]
        self._gpu = widgets.Dropdown(options=[*here, *gpu_options()], value=FIRST_GPU, layout=full)
        self._gpu.add_class("pl-advisor-gpu")
        self._gpu.observe(lambda _: self._hardware_chosen(), "value")
        self._network = widgets.Dropdown(options=network_options(), value="fast", layout=full)
        self._numbers = {
            name: widgets.BoundedIntText(value=value, min=least, max=most, layout=full)
            for name, (value, least, most) in {
                "nodes": (1, 1, 8192), "gpus": (8, 1, 64), "headroom": (10, 0, 95),
                "batch": (0, 0, 2**20), "seq": (0, 0, 2**20),
            }.items()
        }  # fmt: skip
        usual = {"precision": "bf16", "optimizer": "adamw"}
        self._choices = {
            name: Choice(look, f"advisor-{name}", {v: v for v in CHOICES[name]}, value, _nothing)
            for name, value in usual.items()
        }

    def _lay_out(self) -> widgets.VBox:
        look, numbers = self._look, self._numbers
        title = look.text(
            f'{STYLE}<div class="pl-title">Ask for advice</div><div class="pl-muted">Which way of '
            "splitting fits the hardware, and which is fastest: memory predicted, time estimated."
            "</div>"
        )
        fields = [
            look.field("Model", self._menu.widget), look.field("GPU", self._gpu),
            look.field("Nodes", numbers["nodes"]), look.field("GPUs", numbers["gpus"], "a node"),
            look.field("Between nodes", self._network),
            look.field("Headroom", numbers["headroom"], "%"),
            look.field("Batch", numbers["batch"], "0: usual"),
            look.field("Sequence", numbers["seq"], "0: usual"),
            look.field("Precision", self._choices["precision"].widget),
            look.field("Optimizer", self._choices["optimizer"].widget),
        ]  # fmt: skip
        for wide in (0, 1, 4):
            fields[wide].add_class("pl-wide")
        box = widgets.Box(fields, layout=look.layout)
        box.add_class("pl-fields")
        line = widgets.HBox(
            [self._button, self._status],
            layout=widgets.Layout(align_items="center", grid_gap="12px", margin="10px 0 4px"),
        )
        root = widgets.VBox(
            [title, box, line, self._error, self._rule, self._table, self._others],
            layout=look.layout,
        )
        root.add_class("pl-panel")
        root.add_class("pl-advisor")
        return root

    # What a person, or another panel, asks of it. Everything here returns at once.

    def offer(self, model: Model) -> None:
        """Adds a model to choose from."""
        self._menu.offer(model)

    def ask(self) -> None:
        """Looks for plans, in the background."""
        self._button.disabled = True
        self._error.value = ""
        self._say("Comparing plans …")
        self._worker(self._answer)

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the answer."""
        self._worker.wait(timeout)
        self._hands.wait(timeout)

    def close(self) -> None:
        """Takes the panel off the page."""
        self._worker.close()
        self._hands.close()
        for widget in (self.widget, self._head, *(row.widget for row in self._rows)):
            close_all(widget)

    def _hand(self, take: Take, model: Model, plan: Plan, gpu: str | None) -> None:
        self._error.value = ""
        self._hands(lambda: take(model, plan, gpu))

    def _hardware_chosen(self) -> None:
        here = self._gpu.value == HERE
        for control in (self._network, self._numbers["nodes"], self._numbers["gpus"]):
            control.disabled = here

    # In the worker.

    def _question(self) -> dict[str, Any]:
        numbers = {name: int(box.value) for name, box in self._numbers.items()}
        asked: dict[str, Any] = {name: choice.value for name, choice in self._choices.items()}
        asked |= {name: numbers[name] for name in ("batch", "seq") if numbers[name]}
        asked |= {"headroom": numbers["headroom"] / 100, "limit": MAX_ROWS}
        if self._gpu.value != HERE:
            return {
                **asked, "gpu": self._gpu.value, "nodes": numbers["nodes"],
                "gpus_per_node": numbers["gpus"], "interconnect": self._network.value,
            }  # fmt: skip
        devices = self._runner.max_devices
        room, shared = self._runner.room()
        free = min(room // devices if shared else room, UNLIMITED_BYTES // devices)
        return {**asked, "devices": devices, "free_bytes": free}

    def _answer(self) -> None:
        from parallab.advise import advise

        try:
            self.advice = advise(self._menu.model, **self._question())
            self._show(self.advice)
            self._say(f"{self.advice.considered:,} plans compared.")
        except BaseException:
            self._say("")
            self._forget()
            raise
        finally:
            self._button.disabled = False

    def _show(self, advice: Advice) -> None:
        rule = advice.rule
        self._rule.value = (
            f'<div class="pl-rule"><b>{html.escape(rule.situation)}</b> '
            f"{html.escape(rule.reason)} <span>{html.escape(rule.source)}</span>"
            f"{''.join(f'<br>{html.escape(words)}' for words in cautions(advice))}</div>"
        )
        gpu = None if self._gpu.value == HERE else str(self._gpu.value)
        while len(self._rows) < len(advice.options):
            self._rows.append(_Row(self._look))
        for number, (row, option) in enumerate(zip(self._rows, advice.options, strict=False), 1):
            reason = self._why_not(advice.model, option.plan)
            row.show(
                number, option, reason,
                partial(self._hand, self._run, advice.model, option.plan, gpu),
                partial(self._hand, self._calculate, advice.model, option.plan, gpu),
            )  # fmt: skip
        head = [self._head] if advice.options else []
        self._table.children = [*head, *(r.widget for r in self._rows[: len(advice.options)])]
        self._others.value = _rest(advice)

    def _forget(self) -> None:
        """Shows no answer: that to another question would be taken for this one's."""
        self.advice = None
        self._rule.value = self._others.value = ""
        self._table.children = []

    def _say(self, message: str) -> None:
        self._status.value = f'<div class="pl-status">{html.escape(message)}</div>'

    def _show_error(self, error: BaseException) -> None:
        self._error.value = error_words(error)


class _Row:
    """One plan: its figures, and two buttons."""

    def __init__(self, look: Look) -> None:
        self._text = look.text()
        self._run, self._calculate = look.button("Run this one"), look.button("Calculate")
        self._actions: tuple[Callable[[], None], Callable[[], None]] = (_nothing, _nothing)
        for button, css, which in ((self._run, "pl-run-this", 0), (self._calculate, "pl-calc", 1)):
            button.add_class("pl-action")
            button.add_class(css)
            button.on_click(lambda _, which=which: self._actions[which]())
        self.widget = widgets.HBox([self._text, self._run, self._calculate], layout=look.layout)
        self.widget.add_class("pl-option-row")

    def show(
        self,
        number: int,
        option: Option,
        reason: str | None,
        run: Callable[[], None],
        calculate: Callable[[], None],
    ) -> None:
        step = option.step
        self._text.value = _cells((
            str(number),
            f"{option.family}: {describe(option.plan)}",
            f"{in_words(option.need_bytes)} of {in_words(option.room_bytes)}",
            f"{seconds_in_words(step.seconds)}, {percent(step.utilization)} of the peak",
            option.reason,
        ), "pl-option")  # fmt: skip
        self._run.disabled = reason is not None
        self._run.tooltip = reason or "Take this plan to the run panel"
        self._calculate.tooltip = "Take this plan to the calculator"
        self._actions = (run, calculate)


def seconds_in_words(seconds: float) -> str:
    """A duration with three digits that count."""
    if seconds < 1:
        return f"{three_digits(1000 * seconds)} ms"
    return f"{three_digits(seconds)} s"


def _cells(cells: tuple[str, ...], css: str) -> str:
    return f'<div class="{css}">{"".join(f"<span>{html.escape(c)}</span>" for c in cells)}</div>'


def _rest(advice: Advice) -> str:
    """What else fits, and what does not, with its numbers."""
    parts = []
    if advice.remedy:
        parts.append(f'<div class="pl-why">{html.escape(advice.remedy)}</div>')
    slower = [
        f"{o.family}: {describe(o.plan)}, {in_words(o.need_bytes)} of {in_words(o.room_bytes)} "
        f"predicted, {seconds_in_words(o.step.seconds)} estimated; {o.reason}"
        for o in advice.slower
    ]
    refused = [rejection.reason for rejection in advice.rejections]
    for title, lines, opened in (
        ("The best of the other kinds that fit", slower, ""),
        ("Why not the others", [*refused, *advice.impossible], " open"),
    ):
        if lines:
            items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
            parts.append(
                f'<details class="pl-others"{opened}><summary>{title}</summary><ul>{items}</ul>'
                "</details>"
            )
    return "".join(parts)


def _nothing() -> None:
    pass
