"""Taking a plan home: the command that trains what is chosen, and other packages' settings."""

from __future__ import annotations

from collections.abc import Callable

from parallab.errors import ParallabError
from parallab.models.spec import Model
from parallab.panels.parts import Look, error_words
from parallab.plan import Plan
from parallab.take_home import take_home


class Home:
    """A button, and below the panel what it shows until it is pressed again.

    Args:
        chosen: the model and the plan; raises where they cannot be.

    Attributes:
        button, words: what a notebook shows.
    """

    def __init__(self, look: Look, chosen: Callable[[], tuple[Model, Plan]]) -> None:
        self._chosen = chosen
        self.button = look.button("Take it home")
        self.button.icon = "suitcase"
        self.button.tooltip = "The torchrun command and the settings for this plan"
        self.button.add_class("pl-action")
        self.button.add_class("pl-home")
        self.button.on_click(lambda _: self._clicked())
        self.words = look.text()

    def hide(self) -> None:
        """Shows nothing: another plan is chosen now."""
        if self.words.value:
            self.words.value = ""

    def _clicked(self) -> None:
        if self.words.value:
            self.hide()
            return
        try:
            packed = take_home(*self._chosen())
        except ParallabError as error:
            self.words.value = error_words(error)
            return
        self.words.value = f'<div class="pl-packed">{packed._repr_html_()}</div>'
