"""Compare: pinned Reports side by side, and in words what changed between two of them."""

from __future__ import annotations

import html
import threading
from collections.abc import Callable

import ipywidgets as widgets

from parallab.compare.collection import Named
from parallab.compare.export import difference_table, in_words, marks
from parallab.errors import ParallabError
from parallab.panels.opener import Opener
from parallab.panels.parts import Choice, Look, close_all, error_words
from parallab.panels.pinned import LETTERS, PinnedRow
from parallab.panels.pins import Pins
from parallab.panels.style import STYLE
from parallab.panels.take import Take
from parallab.panels.worker import Latest
from parallab.plots.compare import plot_comparison
from parallab.plots.live import picture
from parallab.plots.style import Quantity
from parallab.report import Report

SPEEDS: dict[float, str] = {1: "as it ran", 4: "4 ×", 16: "16 ×"}
QUANTITIES: dict[Quantity, str] = {"wire_bytes": "on the wire", "payload_bytes": "payload"}
NOTHING = (
    "Nothing is pinned yet. Press Pin after a run, or in the calculator, or open Reports that were "
    "saved."
)
ONE = "Pin a second run, and this says what changed from one to the other."

Play = Callable[[Report, float], None]


class Compare:
    """The list of pinned Reports above, what changed from A to B below it, then the picture.

    Args:
        pins: the Reports, which other panels add to.
        play: plays a Report in the run panel, at some speed; raises where it cannot.

    Attributes:
        widget: what a notebook shows.
        pair: A and B, None where there are not two.
    """

    def __init__(self, pins: Pins, play: Play) -> None:
        self.pins, self._play = pins, play
        self._chosen: dict[str, Report] = {}
        self._rows: list[PinnedRow] = []
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._look = look = Look()
        self._worker = Latest(self._show_broken)
        self._list = widgets.VBox(layout=look.layout)
        self._words, self._table = look.text(), look.text()
        self._error, self._broken = look.text(), look.text()
        self._nothing = look.text(f'<div class="pl-notice">{NOTHING}</div>')
        self._image = widgets.Image(format="png", layout=widgets.Layout(width="100%"))
        self._image.add_class("pl-fig")
        self._speed = Choice(look, "speed", SPEEDS, 1, lambda: None)
        self._quantity = Choice(look, "sent", QUANTITIES, "wire_bytes", self._changed)
        self._opener = Opener(look, self._begin, self._keep)
        self._take = Take(look, self._begin, lambda: (self.pins.named, self._places()))
        self.widget = self._lay_out()
        pins.watch(self._changed)
        self._changed()

    def _lay_out(self) -> widgets.VBox:
        look = self._look
        title = look.text(
            f'{STYLE}<div class="pl-title">Compare runs</div><div class="pl-muted">What differs '
            "between two plans, and what that does to memory, bytes and time. Measured, simulated "
            "and predicted Reports can be laid side by side.</div>"
        )
        options = widgets.Box(
            [
                look.field("Communication shown", self._quantity.widget),
                look.field("Replay", self._speed.widget, "how fast"),
            ],
            layout=look.layout,
        )
        options.add_class("pl-split")
        self._parts = [self._words, self._image, options, self._table, self._take.widget]
        root = widgets.VBox(
            [title, self._opener.widget, self._list, self._error, self._broken, *self._parts],
            layout=look.layout,
        )
        root.add_class("pl-panel")
        root.add_class("pl-compare")
        return root

    # What a person, or another panel, asks of it. Everything here returns at once.

    def choose(self, letter: str, report: Report) -> None:
        """Makes a Report A or B; where it was the other one, the two change places."""
        now = dict(zip(LETTERS, self.pair or (), strict=False))
        other = LETTERS[1 - LETTERS.index(letter)]
        if letter in now and now[other] is report:
            self._chosen[other] = now[letter]
        self._chosen[letter] = report
        self._changed()

    def play(self, report: Report) -> None:
        """Plays a Report in the run panel."""
        speed = self._speed.value
        self._begin(lambda: self._play(report, speed))

    def open(self, words: str) -> None:
        """Pins what a file holds, every .json of a folder, or what a pattern finds."""
        self._begin(lambda: self._opener.open(words))

    @property
    def pair(self) -> tuple[Report, Report] | None:
        """A and B: those that were chosen, else the first and the last that was pinned."""
        places = self._places()
        if places is None:
            return None
        named = self.pins.named
        return named[places[0]].report, named[places[1]].report

    @property
    def picture(self) -> bytes:
        """The picture as it is now, as a PNG."""
        return bytes(self._image.value)

    def wait(self, timeout: float | None = None) -> None:
        """Waits for what was asked for to be shown."""
        for thread in self._threads:
            thread.join(timeout)
        self._worker.wait(timeout)

    def close(self) -> None:
        """Takes the panel off the page."""
        self._closed = True
        self._worker.close()
        close_all(self.widget)
        self._nothing.close()  # it is shown only while there are no pins

    # In threads of their own.

    def _changed(self) -> None:
        if not self._closed:
            self._worker(self._update)

    def _places(self) -> tuple[int, int] | None:
        reports = [report for _, report in self.pins.named]
        if len(reports) < 2:
            return None
        at = {
            letter: i
            for letter, chosen in self._chosen.items()
            for i, report in enumerate(reports)
            if report is chosen
        }
        free = [i for i in range(len(reports)) if i not in at.values()]
        first = at["A"] if "A" in at else free[0]
        second = at["B"] if "B" in at else [i for i in free if i != first][-1]
        return first, second

    def _update(self) -> None:
        named = self.pins.named
        there = [report for _, report in named]
        self._chosen = {k: v for k, v in self._chosen.items() if any(v is r for r in there)}
        places = self._places()
        self._broken.value = ""
        self._show_rows(named, marks(len(named), places))
        self._take.clear()
        for part in self._parts:
            (part.remove_class if named else part.add_class)("pl-hidden")
        if not named:
            return
        self._image.value = picture(
            plot_comparison(named, self._quantity.value, marks(len(named), places))
        )
        if places is None:
            self._words.value, self._table.value = f'<div class="pl-notice">{ONE}</div>', ""
            return
        first, second = (named[i] for i in places)
        self._words.value = (
            f'<div class="pl-between">From <b>A</b> {html.escape(first.name)} to <b>B</b> '
            f"{html.escape(second.name)}</div>{in_words(first.report, second.report)}"
        )
        self._table.value = (
            "<details><summary>All figures of A and B, to the byte</summary>"
            f"{difference_table(first.report, second.report)}</details>"
        )

    def _show_rows(self, named: list[Named], letters: list[str]) -> None:
        before = self._rows
        self._rows = [
            next((row for row in before if row.report is pin.report), None)
            or PinnedRow(self._look, self.pins, pin, self)
            for pin in named
        ]
        for row, pin, letter in zip(self._rows, named, letters, strict=True):
            row.show(pin.name, letter)
        children = [row.widget for row in self._rows] or [self._nothing]
        if list(self._list.children) != children:
            self._list.children = children
        for row in before:
            if row not in self._rows:
                row.close()

    def _keep(self, reports: list[Named]) -> list[str]:
        """Pins Reports. Returns what those are called that were pinned already."""
        known = []
        for name, report in reports:
            before = len(self.pins.named)
            called = self.pins.add(report, name)
            if len(self.pins.named) == before:
                known.append(called)
        return known

    def _begin(self, action: Callable[[], None]) -> None:
        """Does something in a thread of its own: what it raises is shown."""

        def guarded() -> None:
            self._error.value = ""
            try:
                action()
            except ParallabError as error:
                self._error.value = f'<div class="pl-why">{html.escape(str(error))}</div>'
            except BaseException as error:  # noqa: BLE001 a thread's traceback is seen by nobody
                self._show_error(error)

        thread = threading.Thread(target=guarded, name="parallab-panel-compare", daemon=True)
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()

    def _show_error(self, error: BaseException) -> None:
        self._error.value = error_words(error)

    def _show_broken(self, error: BaseException) -> None:
        """What went wrong with the picture: gone with the next one, unlike a refusal."""
        self._broken.value = error_words(error)
