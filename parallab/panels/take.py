"""Taking the comparison along: as a link that holds the file itself, or saved beside the notebook.

The link is a data: address, so it needs no port and no path through a proxy.
"""

from __future__ import annotations

import base64
import html
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import ipywidgets as widgets

from parallab.compare.collection import MIB, Named
from parallab.compare.export import MEDIA, to_file
from parallab.panels.opener import Begin
from parallab.panels.parts import Look
from parallab.plots.style import in_words

TITLES = {
    "png": ("Picture", "All pinned runs side by side, as a PNG"),
    "csv": ("Table", "A row for each rank of each pinned run, as CSV"),
    "json": ("Reports", "All pinned Reports in one JSON file, to be opened here again"),
    "html": ("Page", "Words, pictures and tables in one HTML page that needs nothing else"),
}
# Larger files are only saved: the link goes through the page, and stays in it.
LINK_BYTES = 16 * MIB
STEM = "parallab-comparison"

Chosen = Callable[[], tuple[Sequence[Named], tuple[int, int] | None]]


class Take:
    """A button for each format; then a link to download the file, and a button to save it.

    Args:
        begin: does something in another thread.
        chosen: the Reports, and which two of them are A and B.

    Attributes:
        widget: what a notebook shows.
    """

    def __init__(self, look: Look, begin: Begin, chosen: Chosen) -> None:
        self._begin, self._chosen = begin, chosen
        self._lock = threading.Lock()
        self._made: tuple[str, bytes] | None = None
        self._buttons = [self._button(look, kind) for kind in TITLES]
        self._link = look.text()
        self._save = look.button("Save beside the notebook")
        self._save.tooltip = "Write the file into the kernel's working directory"
        self._save.add_class("pl-action")
        self._save.add_class("pl-save")
        self._save.on_click(lambda _: begin(self.save))
        words = look.text('<span class="pl-muted">Take it along:</span>')
        self.widget = widgets.HBox(
            [words, *self._buttons, self._link, self._save], layout=look.layout
        )
        self.widget.add_class("pl-take")
        self.clear()

    def _button(self, look: Look, kind: str) -> widgets.Button:
        title, tooltip = TITLES[kind]
        button = look.button(f"{title} ({kind.upper()})", tooltip)
        button.add_class("pl-action")
        button.add_class(f"pl-take-{kind}")
        button.on_click(lambda _: self._begin(lambda: self.make(kind)))
        return button

    def clear(self) -> None:
        """Forgets the last file: the comparison is another now."""
        self._made = None
        self._show("", savable=False)
        reports, _ = self._chosen()
        for button in self._buttons:
            button.disabled = not reports

    def make(self, kind: str) -> None:
        """Makes the file, and shows its link."""
        reports, pair = self._chosen()
        if not reports:
            return
        with self._lock:
            self._show('<span class="pl-muted">Making it …</span>', savable=False)
            data = to_file(kind, reports, pair)
            name = f"{STEM}.{kind}"
            self._made = (name, data)
            size = in_words(len(data))
            if len(data) > LINK_BYTES:
                self._show(f'<span class="pl-muted">{name}, {size}: too large for a link.</span>')
                return
            address = f"data:{MEDIA[kind]};base64,{base64.b64encode(data).decode()}"
            self._show(
                f'<a class="pl-link" download="{name}" href="{address}">Download {name}</a> '
                f'<span class="pl-muted">{size}</span>'
            )

    def save(self) -> None:
        """Writes the file into the working directory; no other file is overwritten."""
        with self._lock:
            if self._made is None:
                return
            name, data = self._made
            path = _free(Path(name))
            try:
                path.write_bytes(data)
                words = f"Saved as {path.absolute()}"
            except OSError as error:
                words = f"{path.absolute()} cannot be written: {error.strerror}."
            self._show(f'<span class="pl-notice">{html.escape(words)}</span>', savable=False)

    def _show(self, words: str, savable: bool = True) -> None:
        self._link.value = words
        (self._save.remove_class if savable else self._save.add_class)("pl-hidden")


def _free(path: Path) -> Path:
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_stem(f"{path.stem}-{number}")
    return found
