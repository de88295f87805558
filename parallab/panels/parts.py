"""The small parts that panels are made of."""

from __future__ import annotations

import html
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, TypeVar

import ipywidgets as widgets

from parallab.errors import ParallabError, RankError

Value = TypeVar("Value", bound=Hashable)


class Choice(Generic[Value]):
    """One of several buttons. What cannot work is grey, and says why when pointed at.

    Args:
        name: the buttons' CSS classes are pl-{name}-{value}.
        options: value -> label.
        hints: value -> what is shown when pointed at.
        changed: called after another button was chosen by a person.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[Value, str],
        value: Value,
        changed: Callable[[], None],
        hints: Mapping[Value, str] | None = None,
    ) -> None:
        self._hints = dict(hints or {})
        self._reasons: dict[Value, str | None] = {}
        self._locked = False
        # One of each for all buttons: a page that is loaded again asks for every model.
        self._layout, self._style = widgets.Layout(), widgets.ButtonStyle()
        self._changed = changed
        self._buttons = {
            option: self._button(name, option, label) for option, label in options.items()
        }
        self.widget = widgets.Box(list(self._buttons.values()))
        self.widget.add_class("pl-choices")
        self.value = value

    def _button(self, name: str, option: Value, label: str) -> widgets.Button:
        button = widgets.Button(
            description=label,
            tooltip=self._hints.get(option, ""),
            layout=self._layout,
            style=self._style,
        )
        button.add_class("pl-choice")
        button.add_class(f"pl-{name}-{option}".replace("+", "-"))
        button.on_click(lambda _: self._choose(option))
        return button

    def _choose(self, option: Value) -> None:
        if not self._locked and not self._reasons.get(option):
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

    def __init__(self, lines: int = 200) -> None:
        self.widget = widgets.HTML()
        self._lines: deque[str] = deque(maxlen=lines)
        self._show()

    def __call__(self, message: str) -> None:
        self._lines.append(f"{time.strftime('%H:%M:%S')}  {html.escape(message)}")
        self._show()

    def _show(self) -> None:
        # A reversed column keeps its end in view without any JavaScript.
        text = "\n".join(self._lines)
        self.widget.value = f'<div class="pl-log"><div>{text}</div></div>'


def field(label: str, control: widgets.Widget, note: str = "", wide: bool = False) -> widgets.VBox:
    """A control under its label."""
    aside = f" <span>{html.escape(note)}</span>" if note else ""
    title = widgets.HTML(f'<div class="pl-label">{html.escape(label)}{aside}</div>')
    box = widgets.VBox([title, control])
    box.add_class("pl-field")
    if wide:
        box.add_class("pl-wide")
    return box


def tiles(figures: Iterable[tuple[str, str]]) -> str:
    """The main figures as HTML: (value, what it is)."""
    cells = "".join(
        f'<div class="pl-tile"><b>{html.escape(value)}</b>'
        f'<span title="{html.escape(name)}">{html.escape(name)}</span></div>'
        for value, name in figures
    )
    return f'<div class="pl-tiles">{cells}</div>'


def error_words(error: BaseException) -> str:
    """An error as HTML: in words, with whatever only an expert needs folded away."""
    details = "".join(traceback.format_exception(error))
    words = str(error)
    if isinstance(error, RankError) and error.details:
        details = error.details
    elif not isinstance(error, ParallabError):
        words = (
            f"Something went wrong that parallab did not expect: {type(error).__name__}: {error}"
        )
    return (
        f'<div class="pl-error">{html.escape(words)}<details><summary>Details</summary>'
        f"<pre>{html.escape(details)}</pre></details></div>"
    )
