"""A pinned Report in the list: is it A or B, what is it called, play it, forget it."""

from __future__ import annotations

import html
from typing import Any, Protocol

import ipywidgets as widgets

from parallab.compare.collection import Named
from parallab.panels.parts import Look, all_widgets
from parallab.panels.pins import Pins
from parallab.report import Report

LETTERS = "AB"


class Asked(Protocol):
    """What a row asks of its panel."""

    def choose(self, letter: str, report: Report) -> None:
        """Makes a Report A or B."""

    def play(self, report: Report) -> None:
        """Plays a Report in the run panel."""


class PinnedRow:
    """One Report.

    Attributes:
        report: which.
        widget: what a notebook shows.
    """

    def __init__(self, look: Look, pins: Pins, pin: Named, asked: Asked) -> None:
        self.report = report = pin.report
        self._pins = pins
        self._letters = {letter: _letter(look, letter) for letter in LETTERS}
        for letter, button in self._letters.items():
            button.on_click(lambda _, letter=letter: asked.choose(letter, report))
        self._name = widgets.Text(value=pin.name, continuous_update=False, layout=look.layout)
        self._name.add_class("pl-pin-name")
        self._name.tooltip = "Its name: type another, and press Enter"
        self._name.observe(self._renamed, "value")
        words = f"{report.model.name}: {report.plan}"
        about = look.text(
            f'<div class="pl-pin-words" title="{html.escape(words)}">'
            f'<span class="pl-source">{html.escape(report.source)}</span>{html.escape(words)}</div>'
        )
        play = look.button("Replay", _why_play(report))
        play.disabled = report.source != "measured"
        play.on_click(lambda _: asked.play(report))
        forget = look.button("×", "Remove this run from the list")
        forget.on_click(lambda _: pins.remove(report))
        for button, css in ((play, "pl-replay"), (forget, "pl-forget")):
            button.add_class("pl-action")
            button.add_class(css)
        self.widget = widgets.HBox(
            [*self._letters.values(), self._name, about, play, forget], layout=look.layout
        )
        self.widget.add_class("pl-pin-row")

    def close(self) -> None:
        """Takes the row off the page; what it shares with other widgets stays."""
        self._name.style.close()
        for widget in all_widgets(self.widget):
            widget.close()

    def show(self, name: str, letter: str) -> None:
        """Shows what it is called, and which of the two it is, if any."""
        self._name.value = name
        for other, button in self._letters.items():
            (button.add_class if other == letter else button.remove_class)("pl-chosen")

    def _renamed(self, change: dict[str, Any]) -> None:
        names = {id(pin.report): pin.name for pin in self._pins.named}
        if change["new"] != names.get(id(self.report), change["new"]):
            self._name.value = self._pins.rename(self.report, str(change["new"]))


def _letter(look: Look, letter: str) -> widgets.Button:
    button = look.button(letter, f"Compare this run as {letter}")
    button.add_class("pl-choice")
    button.add_class(f"pl-pin-{letter.lower()}")
    return button


def _why_play(report: Report) -> str:
    if report.source != "measured":
        return f"This Report is {report.source}: only a run that was measured can be replayed."
    return "Play this saved run in the run panel; nothing is run"
