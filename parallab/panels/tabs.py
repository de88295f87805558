"""Several panels in one place, each built when it is first opened.

A page that is loaded again asks for every widget: what nobody has opened must not be among them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import ipywidgets as widgets

from parallab.panels.parts import Look, close_all, error_words


class Panel(Protocol):
    """What a tab shows."""

    widget: widgets.Widget

    def close(self) -> None:
        """Ends what it does and takes it off the page."""


class Tabs:
    """Buttons in a row, and the panel of the one that was pressed last.

    Args:
        builders: name -> what makes its panel. The first is made at once.

    Attributes:
        widget: what a notebook shows.
        open_name: the panel that is shown.
    """

    def __init__(self, builders: dict[str, Callable[[], Panel]]) -> None:
        self._builders = builders
        self._look = look = Look()
        self._lock = threading.RLock()
        self._panels: dict[str, Panel] = {}
        self._closed = False
        self._buttons = {name: self._button(name) for name in builders}
        self._error = look.text()
        bar = widgets.Box(list(self._buttons.values()), layout=look.layout)
        bar.add_class("pl-tabs")
        self._place = widgets.VBox(layout=look.layout)
        self.widget = widgets.VBox([bar, self._place, self._error], layout=look.layout)
        self.widget.add_class("pl-lab")
        self.open_name = next(iter(builders))
        self.open(self.open_name)

    def _button(self, name: str) -> widgets.Button:
        button = self._look.button(name)
        button.add_class("pl-tab")
        button.add_class(f"pl-tab-{name.lower()}")
        button.on_click(lambda _: self._clicked(name))
        return button

    @property
    def opened(self) -> list[Panel]:
        """The panels that there are so far."""
        return list(self._panels.values())

    def panel(self, name: str) -> Any:
        """The panel of that name, made now if it is needed for the first time."""
        with self._lock:
            if name not in self._panels:
                panel = self._builders[name]()
                panel.widget.add_class("pl-hidden")
                self._panels[name] = panel
                self._place.children = [p.widget for p in self._panels.values()]
            return self._panels[name]

    def open(self, name: str) -> Any:
        """Shows the panel of that name, and returns it."""
        with self._lock:
            chosen = self.panel(name)
            for other, panel in self._panels.items():
                shown = other == name
                (panel.widget.remove_class if shown else panel.widget.add_class)("pl-hidden")
            for other, button in self._buttons.items():
                (button.add_class if other == name else button.remove_class)("pl-tab-open")
            self.open_name = name
            return chosen

    def label(self, name: str, words: str) -> None:
        """Writes something else on a panel's button."""
        self._buttons[name].description = words

    def close(self) -> None:
        """Closes every panel that was opened."""
        with self._lock:
            self._closed = True
            panels = list(self._panels.values())
        for panel in panels:
            panel.close()
        self._place.children = []
        close_all(self.widget)

    def _clicked(self, name: str) -> None:
        threading.Thread(
            target=self._open_in_words, args=(name,), name="parallab-panel-open", daemon=True
        ).start()

    def _open_in_words(self, name: str) -> None:
        try:
            with self._lock:
                if not self._closed:
                    self.open(name)
            self._error.value = ""
        except BaseException as error:  # noqa: BLE001 a thread's traceback is seen by nobody
            self._error.value = error_words(error)
