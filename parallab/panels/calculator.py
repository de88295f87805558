"""The calculator: what any plan would cost for any model, predicted while a slider moves."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets

from parallab.errors import ParallabError
from parallab.models.spec import Model
from parallab.panels.cards import FIRST, Card
from parallab.panels.paper import PaperControls
from parallab.panels.parts import Choice, Look, close_all, error_words
from parallab.panels.pins import PinButton, Pins
from parallab.panels.style import STYLE
from parallab.panels.sums import payload_table, peak_in_words, sum_in_words
from parallab.panels.theory import predicted
from parallab.panels.worker import Latest
from parallab.plan import Plan
from parallab.plots.live import picture
from parallab.plots.peaks import plot_peaks
from parallab.predict.report import Kernels
from parallab.report import Report

FIRST_MODEL = Model("llama-3.1-8b")
FIRST_PLAN = Plan("zero3", 8, batch=8, seq=4096, precision="bf16")
KERNELS: dict[Kernels, str] = {"cuda": "CUDA", "cpu": "CPU"}
HINTS: dict[Kernels, str] = {
    "cuda": "A GPU's fused kernels.",
    "cpu": "Kernels of the CPU: what the engines without a GPU run.",
}


class Calculator:
    """Inputs on the left; on the right the predicted peak of each kind of rank.

    Args:
        pasted: called with every model that was read from a pasted config.json.
        pins: what keeps predictions to compare them.

    Attributes:
        widget: what a notebook shows.
        report: the latest prediction, None where the plan cannot work.
    """

    def __init__(
        self, pasted: Callable[[Model], None] | None = None, pins: Pins | None = None
    ) -> None:
        self._tell = pasted
        self.report: Report | None = None
        self._look = look = Look()
        self._redraw = Latest(self._show_error)
        self._parse = Latest(self._show_error)
        self._why, self._error, self._words, self._sent = (look.text() for _ in range(4))
        self._read, self._pinned = look.text(), look.text()
        self._pin = PinButton(
            look, pins, lambda: [self.report] if self.report else [], self._say_pinned,
            "Pin this prediction",
        )  # fmt: skip
        self._image = widgets.Image(format="png", layout=widgets.Layout(width="100%"))
        self._image.add_class("pl-fig")
        self._kernels = Choice(look, "kernels", KERNELS, "cuda", self._changed, HINTS)
        self.card = Card(look, self._changed)
        self._pasted = widgets.Textarea(
            placeholder="Or paste a config.json here.", rows=2, layout=widgets.Layout(width="100%")
        )
        self._pasted.add_class("pl-config")
        self._pasted.observe(self._paste, "value")
        self.controls = PaperControls(look, self._changed)
        self.widget = self._lay_out()
        self.show(FIRST_MODEL, FIRST_PLAN, FIRST)
        self._changed()

    def _lay_out(self) -> widgets.VBox:
        title = self._look.text(
            f'{STYLE}<div class="pl-title">Calculate a plan</div><div class="pl-muted">'
            "What any plan costs for any model: predicted by formulas, at once; nothing runs.</div>"
        )
        config = self._look.field("Config", self._pasted, "Hugging Face config.json")
        config.add_class("pl-wide")
        kernels = self._look.field("Kernels", self._kernels.widget)
        fields = self.controls.fields
        model, *others = fields.children
        fields.children = [model, config, *others, *self.card.fields, kernels]
        left = widgets.VBox(
            [fields, self._read, self._why, self._pin.widget, self._pinned],
            layout=widgets.Layout(flex="1 1 264px", min_width="0", padding="0 18px 0 0"),
        )
        right = widgets.VBox(
            [self._words, self._image, self._sent],
            layout=widgets.Layout(
                flex="1000 1 560px", min_width="0", overflow="hidden", padding="7px 0 0"
            ),
        )
        middle = widgets.Box(
            [left, right],
            layout=widgets.Layout(display="flex", flex_flow="row wrap", align_items="flex-start"),
        )
        root = widgets.VBox(
            [title, self.controls.header, middle, self._error], layout=self._look.layout
        )
        root.add_class("pl-panel")
        root.add_class("pl-calculator")
        return root

    # What a person, or another panel, asks of it. Everything here returns at once.

    def show(self, model: Model, plan: Plan, gpu: str | None = None) -> None:
        """Sets every input to a plan, and to the GPU that it is for."""
        if gpu is not None:
            self.card.show(gpu)
        self.controls.show(model, plan, 1)

    def wait(self, timeout: float | None = None) -> None:
        """Waits for what was asked for to be shown."""
        self._parse.wait(timeout)
        self._redraw.wait(timeout)

    @property
    def picture(self) -> bytes:
        """The bars as they are now, as a PNG."""
        return bytes(self._image.value)

    def close(self) -> None:
        """Takes the panel off the page."""
        self._redraw.close()
        self._parse.close()
        close_all(self.widget)

    def _changed(self) -> None:
        if hasattr(self, "widget"):  # not while it is being made
            self._redraw(self._update)

    def _paste(self, change: dict[str, Any]) -> None:
        text = str(change["new"])
        self._parse(lambda: self._take(text))

    # In a thread of their own.

    def _take(self, text: str) -> None:
        self._read.value = ""
        if not text.strip():
            return
        try:
            model = self.controls.add(text)
        except ParallabError as error:
            self._read.value = f'<div class="pl-why">{html.escape(str(error))}</div>'
        else:
            if self._tell is not None:
                self._tell(model)
            self._read.value = f'<div class="pl-notice">Read as {html.escape(str(model))}.</div>'

    def _update(self) -> None:
        controls = self.controls
        self._why.value = (
            f'<div class="pl-why">{html.escape(controls.reason or "")}</div>'
            f'<div class="pl-notice">{html.escape(controls.notice)}</div>'
        )
        self._error.value = ""
        self.report = None
        if controls.reason is None:
            try:
                self.report = predicted(controls.model, controls.plan, self._kernels.value)
            except ParallabError as error:
                self._why.value = f'<div class="pl-why">{html.escape(str(error))}</div>'
        if self.report is not None:
            self._show(self.report)
        else:
            # What was shown is of another plan; its picture keeps its place, and fades.
            self._words.value = self._sent.value = ""
            self._image.add_class("pl-stale")
        self._pin.refresh()
        self._pinned.value = ""
        controls.refuse()

    def _show(self, report: Report) -> None:
        self._image.remove_class("pl-stale")
        self._image.value = picture(plot_peaks(report, self.card.memory_bytes, self.card.name))
        highest = max(report.ranks, key=lambda rank: rank.peak.peak_bytes)
        peak = peak_in_words(highest.peak, highest.rank, self.card.memory_bytes, self.card.name)
        css = "pl-fits" if highest.peak.peak_bytes <= self.card.memory_bytes else "pl-too-big"
        estimated = "; ".join(report.environment.get("estimated", ()))
        self._words.value = (
            f'<div class="pl-sum">{html.escape(sum_in_words(report.plan))}.</div>'
            f'<div class="pl-sum {css}">{html.escape(peak)}.</div>'
            f'<div class="pl-muted">{html.escape(f"Estimated: {estimated}." if estimated else "")}'
            "</div>"
        )
        self._sent.value = payload_table(report)

    def _say_pinned(self, words: str) -> None:
        self._pinned.value = f'<div class="pl-notice">{html.escape(words)}</div>'

    def _show_error(self, error: BaseException) -> None:
        self._error.value = error_words(error)
