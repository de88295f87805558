"""Which Reports a person keeps to compare, and the button that keeps one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from parallab.compare.collection import Named, short_name, unique
from parallab.errors import ParallabError, ReportError
from parallab.panels.parts import Look
from parallab.report import Report

MOST = 16
NAME_LENGTH = 48  # what a row and a picture have room for


class Pins:
    """Reports by name, in the order in which they were pinned. Any thread may call.

    >>> pins = Pins()
    >>> pins.named
    []
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: list[Named] = []
        self._watchers: list[Callable[[], None]] = []

    def watch(self, changed: Callable[[], None]) -> None:
        """Calls this after every change."""
        self._watchers.append(changed)

    @property
    def named(self) -> list[Named]:
        """All of them."""
        return list(self._found)

    @property
    def names(self) -> list[str]:
        """What they are called."""
        return [name for name, _ in self._found]

    def add(self, report: Report, name: str = "") -> str:
        """Pins a Report, and returns what it is called; one that is pinned already stays as it is.

        Raises:
            ReportError: it has no finished step, or too many are pinned.
        """
        with self._lock:
            for pin in self._found:
                if pin.report is report or pin.report == report:
                    return pin.name
            if not report.steps:
                raise ReportError("This run has no finished step, so there is nothing to compare.")
            if len(self._found) >= MOST:
                raise ReportError(f"{MOST} runs are pinned already, more than a picture can show: "
                                  "remove one on the Compare tab.")  # fmt: skip
            found = unique(_short(name) or short_name(report), self.names)
            self._found.append(Named(found, report))
        self._tell()
        return found

    def remove(self, report: Report) -> None:
        """Forgets a Report."""
        with self._lock:
            self._found = [pin for pin in self._found if pin.report is not report]
        self._tell()

    def rename(self, report: Report, wish: str) -> str:
        """Calls a Report something else; returns what, since every name is there once."""
        with self._lock:
            others = [pin.name for pin in self._found if pin.report is not report]
            before = next((pin.name for pin in self._found if pin.report is report), "")
            new = unique(_short(wish), others) if wish.strip() else before
            self._found = [
                Named(new, report) if pin.report is report else pin for pin in self._found
            ]
        self._tell()
        return new

    def _tell(self) -> None:
        for watcher in self._watchers:
            watcher()


def _short(name: str) -> str:
    name = name.strip()
    return name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…"


class PinButton:
    """Pins what a panel shows, and says under which name.

    Args:
        pins: where to; None makes a button that is never shown.
        shown: what would be pinned now.
        say: told what was done, or why not.

    Attributes:
        widget: what a notebook shows.
    """

    def __init__(
        self, look: Look, pins: Pins | None, shown: Callable[[], Sequence[Report]],
        say: Callable[[str], None], label: str = "Pin",
    ) -> None:  # fmt: skip
        self._pins, self._shown, self._say = pins, shown, say
        self.widget = look.button(label, "Keep this, to lay it beside others on the Compare tab")
        self.widget.icon = "thumb-tack"
        self.widget.add_class("pl-action")
        self.widget.add_class("pl-pin")
        if pins is None:
            self.widget.add_class("pl-hidden")
        self.widget.on_click(lambda _: self._clicked())
        self.refresh()

    def refresh(self, enabled: bool = True) -> None:
        """Greys the button out where there is nothing to pin."""
        self.widget.disabled = not (enabled and self._shown())

    def _clicked(self) -> None:
        assert self._pins is not None
        try:
            names = [self._pins.add(report) for report in self._shown()]
        except ParallabError as error:
            self._say(str(error))
            return
        if names:
            self._say(f"Pinned to Compare: {'; '.join(names)}.")
