"""The small parts that panels are made of."""

from __future__ import annotations

import html
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

import ipywidgets as widgets
from ipywidgets.widgets.widget_string import HTMLStyle

from parallab.errors import ParallabError, RankError

Value = TypeVar("Value", bound=Hashable)


class Look:
    """One layout and one style of a kind, for all widgets that CSS classes can do the rest for.

    A page that is loaded again asks for every model: the fewer there are, the sooner it shows them.
    """

    def __init__(self) -> None:
        self.layout = widgets.Layout()
        self._button, self._text = widgets.ButtonStyle(), HTMLStyle()

    def text(self, value: str = "") -> widgets.HTML:
        """A piece of HTML."""
        return widgets.HTML(value, layout=self.layout, style=self._text)

    def button(self, label: str, tooltip: str = "") -> widgets.Button:
        """A plain button."""
        return widgets.Button(
            description=label, tooltip=tooltip, layout=self.layout, style=self._button
        )

    def field(
        self, name: str, control: widgets.Widget, note: str = "", layout: Any = None
    ) -> widgets.VBox:
        """A control under its label; with a layout of its own, it can be hidden."""
        box = widgets.VBox([self.text(label(name, note)), control], layout=layout or self.layout)
        box.add_class("pl-field")
        return box


def all_widgets(root: widgets.Widget) -> list[widgets.Widget]:
    """A widget and all that it holds."""
    found = [root]
    for child in getattr(root, "children", ()):
        found += all_widgets(child)
    return found


def close_all(root: widgets.Widget) -> None:
    """Takes a widget off the page, with all that it holds and how that looks."""
    for widget in all_widgets(root):
        for part in (getattr(widget, "style", None), widget.layout, widget):
            if part is not None:
                part.close()


def label(name: str, note: str = "") -> str:
    """A control's name as HTML."""
    aside = f" <span>{html.escape(note)}</span>" if note else ""
    return f'<div class="pl-label">{html.escape(name)}{aside}</div>'


class Choice(Generic[Value]):
    """One of several buttons. What cannot work is grey, and says why when pointed at.

    Args:
        look: shared with other widgets.
        name: the buttons' CSS classes are pl-{name}-{value}.
        options: value -> label; `offer` changes them.
        hints: value -> what is shown when pointed at.
        changed: called after another button was chosen by a person.
    """

    def __init__(
        self,
        look: Look,
        name: str,
        options: Mapping[Value, str],
        value: Value,
        changed: Callable[[], None],
        hints: Mapping[Value, str] | None = None,
    ) -> None:
        self._hints = dict(hints or {})
        self._reasons: dict[Value, str | None] = {}
        self._locked = False
        self._look, self._name, self._changed = look, name, changed
        self._buttons: dict[Value, widgets.Button] = {}
        self.widget = widgets.Box(layout=look.layout)
        self.widget.add_class("pl-choices")
        self._value = value
        self.offer(options)

    def offer(self, options: Mapping[Value, str]) -> None:
        """Shows these options instead, in this order."""
        if list(options) == self.options:
            return
        before = self._buttons
        self._buttons = {o: before.get(o) or self._button(o, text) for o, text in options.items()}
        self.widget.children = list(self._buttons.values())
        for option in before.keys() - options.keys():
            before[option].close()
        self.value = self._value
        self._show()

    def _button(self, option: Value, label: str) -> widgets.Button:
        button = self._look.button(label, self._hints.get(option, ""))
        button.add_class("pl-choice")
        button.add_class(f"pl-{self._name}-{option}".replace("+", "-"))
        button.on_click(lambda _: self._choose(option))
        return button

    def _choose(self, option: Value) -> None:
        if not (self._locked or self._reasons.get(option)) and option in self._buttons:
            self.value = option
            self._changed()

    @property
    def options(self) -> list[Value]:
        """All values."""
        return list(self._buttons)

    @property
    def value(self) -> Value:
        """The chosen one."""
        return self._value

    @value.setter
    def value(self, value: Value) -> None:
        self._value = value
        for option, button in self._buttons.items():
            (button.add_class if option == value else button.remove_class)("pl-chosen")

    def refuse(self, reasons: Mapping[Value, str | None]) -> None:
        """Greys out the values that have a reason."""
        self._reasons = dict(reasons)
        self._show()

    def lock(self, locked: bool) -> None:
        """Greys out everything while a run is under way."""
        self._locked = locked
        self._show()

    def _show(self) -> None:
        for option, button in self._buttons.items():
            reason = self._reasons.get(option)
            button.disabled = self._locked or bool(reason)
            button.tooltip = reason or self._hints.get(option, "")


class Log:
    """The last lines of what happened, the newest in view."""

    def __init__(self, look: Look, lines: int = 200) -> None:
        self.widget = look.text()
        self._lines: deque[str] = deque(maxlen=lines)
        self._show()

    def __call__(self, message: str) -> None:
        self._lines.append(f"{time.strftime('%H:%M:%S')}  {html.escape(message)}")
        self._show()

    def _show(self) -> None:
        # A reversed column keeps its end in view without any JavaScript.
        text = "\n".join(self._lines)
        self.widget.value = f'<div class="pl-log"><div>{text}</div></div>'


def error_words(error: BaseException) -> str:
    """An error as HTML: in words, with whatever only an expert needs folded away."""
    details = "".join(traceback.format_exception(error))
    words = str(error)
    if isinstance(error, ParallabError) and isinstance(error, ValueError):
        details = ""  # a person's mistake: the sentence says it all
    elif isinstance(error, RankError) and error.details:
        details = error.details
    elif not isinstance(error, ParallabError):
        words = (
            f"Something went wrong that parallab did not expect: {type(error).__name__}: {error}"
        )
    folded = f"<details><summary>Details</summary><pre>{html.escape(details)}</pre></details>"
    return f'<div class="pl-error">{html.escape(words)}{folded if details else ""}</div>'
