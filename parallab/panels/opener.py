"""Opening saved Reports: uploaded from the reader's machine, or by a path on this one."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ipywidgets as widgets

from parallab.compare import collection
from parallab.compare.collection import MIB, Named
from parallab.errors import ParallabError
from parallab.panels.parts import Look

# An upload is one message, and one of more than 10 MiB is dropped on its way to the kernel, which
# so can say nothing of it (tornado's websocket_max_message_size).
UPLOAD_BYTES = 8 * MIB

Begin = Callable[[Callable[[], None]], None]


class Opener:
    """A button that uploads files, and a field for a path, a folder or a pattern.

    Args:
        begin: does something in another thread.
        found: takes what a file held, and returns names of what was there already; raises where
            it cannot.

    Attributes:
        widget: what a notebook shows.
    """

    def __init__(self, look: Look, begin: Begin, found: Callable[[list[Named]], list[str]]) -> None:
        self._begin, self._found = begin, found
        self._upload = widgets.FileUpload(
            accept=".json", multiple=True, description="Open saved Reports", layout=look.layout
        )
        self._upload.add_class("pl-upload")
        self._upload.add_class("pl-action")
        self._upload.tooltip = "Files on your own machine; several at once"
        self._upload.observe(self._uploaded, "value")
        self._path = widgets.Text(
            placeholder="or a path, a folder, a pattern: runs/*.json", layout=look.layout
        )
        self._path.add_class("pl-path")
        self._path.on_msg(self._typed)
        open_path = look.button("Open path", "Read files where this kernel runs")
        open_path.add_class("pl-action")
        open_path.add_class("pl-open-path")
        open_path.on_click(lambda _: self._ask())
        self._said = look.text()
        limit = look.text(
            f'<span class="pl-muted">Uploads up to {UPLOAD_BYTES // MIB} MiB, by path up to '
            f"{collection.MAX_BYTES // MIB} MiB</span>"
        )
        line = widgets.HBox([self._upload, self._path, open_path, limit], layout=look.layout)
        line.add_class("pl-open")
        self.widget = widgets.VBox([line, self._said], layout=look.layout)

    def open(self, words: str) -> None:
        """Reads a file, every .json of a folder, or what a pattern finds."""
        try:
            paths = collection.paths(words)
        except ParallabError as error:
            self._say(0, [str(error)])
            return
        self._read([partial(collection.load, path) for path in paths])

    def _ask(self) -> None:
        words = self._path.value
        if words.strip():
            self._begin(lambda: self.open(words))

    def _typed(self, widget: widgets.Text, content: dict[str, Any], buffers: Any) -> None:
        if content.get("event") == "submit":
            self._ask()

    def _uploaded(self, change: dict[str, Any]) -> None:
        files = [(str(file["name"]), bytes(file["content"])) for file in change["new"]]
        if files:
            self._upload.value = ()
            self._begin(lambda: self._read([partial(collection.read, *file) for file in files]))

    def _read(self, readers: Sequence[Callable[[], list[Named]]]) -> None:
        count, refused, known = 0, list[str](), list[str]()
        for reader in readers:
            try:
                reports = reader()
                there = self._found(reports)
                count, known = count + len(reports) - len(there), known + there
            except ParallabError as error:
                refused.append(str(error))
        self._say(count, refused, known)

    def _say(self, count: int, refused: list[str], known: Sequence[str] = ()) -> None:
        lines = [f'<div class="pl-why">{html.escape(words)}</div>' for words in refused]
        said = f"Opened {count} Report{'s' if count > 1 else ''}. " if count else ""
        said += f"Pinned already: {', '.join(known)}." if known else ""
        if said:
            lines.insert(0, f'<div class="pl-notice">{html.escape(said.strip())}</div>')
        self._said.value = "".join(lines)
