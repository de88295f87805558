"""The drawing half of a live view: a figure that is redrawn many times a second.

A full matplotlib draw of these plots costs some 100 ms, nearly all of it text. So the background is
drawn once and kept, the artists that carry data are drawn on it when a step brings some (blitting),
on that the live gauges, and a frame leaves as a palette PNG, a quarter of the size. One thread at a
time draws; pyplot is never used.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from parallab.plots.figures import RunFigure
from parallab.plots.history import History
from parallab.plots.style import CATEGORY_COLOURS, OPERATION_COLOURS, Quantity
from parallab.progress import Progress

# How far a marker reaches beyond its axes.
MARGIN_PIXELS = 16


class LiveFigure:
    """A Figure whose frames go to `show` as PNG bytes, at most `max_fps` a second.

    >>> live = LiveFigure(figure, lambda png: setattr(image, "value", png))     # doctest: +SKIP
    >>> live.draw(data=[line], live=[marker])                                   # doctest: +SKIP

    Attributes:
        frames: how many frames were shown.
    """

    def __init__(self, figure: Figure, show: Callable[[bytes], None], max_fps: float = 10) -> None:
        self._figure, self._show, self._interval = figure, show, 1 / max_fps
        self._canvas = FigureCanvasAgg(figure)
        self._background: Any = None
        self._data: Any = None
        self._picture = Image.new("P", (1, 1))
        self._due = 0.0
        self.frames = 0

    @property
    def due(self) -> bool:
        """Whether the frame rate allows a frame now."""
        return time.monotonic() >= self._due

    def invalidate(self, background: bool = True) -> None:
        """The next frame draws the data again, and with `background` everything else too."""
        self._data = None
        if background:
            self._background = None

    def draw(self, data: Sequence[Artist], live: Sequence[Artist]) -> None:
        """Draws a frame and shows it: `live` artists on the data, that on the background.

        Args:
            live: artists within their axes, or as near to them as `MARGIN_PIXELS`.
        """
        self._due = time.monotonic() + self._interval
        for artist in (*data, *live):
            artist.set_animated(True)
        if self._background is None:
            self._canvas.draw()
            self._background = self._canvas.copy_from_bbox(self._figure.bbox)
        if self._data is None:
            self._canvas.restore_region(self._background)
            _draw(data)
            self._data = self._canvas.copy_from_bbox(self._figure.bbox)
            self._picture = in_palette(self._pixels)
        self._canvas.restore_region(self._data)
        _draw(live)
        # Colours cost more than drawing: only where something moves are they looked up again.
        for left, top, right, bottom in {self._surroundings(artist) for artist in live}:
            part = in_palette(self._pixels[top:bottom, left:right])
            self._picture.paste(part, (left, top))
        self.frames += 1
        self._show(as_png(self._picture))

    @property
    def _pixels(self) -> Any:
        return np.asarray(self._canvas.buffer_rgba())

    def _surroundings(self, artist: Artist) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the pixels that an artist may touch."""
        assert artist.axes is not None
        height, width, _ = self._pixels.shape
        (left, low), (right, high) = artist.axes.bbox.padded(MARGIN_PIXELS).get_points()
        top, bottom = height - int(high), height - int(low)
        return max(0, int(left)), max(0, top), min(width, int(right)), min(height, bottom)


def _draw(artists: Sequence[Artist]) -> None:
    for artist in artists:
        assert artist.axes is not None
        artist.axes.draw_artist(artist)


class LiveRunView:
    """Memory, timeline, communication, traffic and loss of a run under way.

    Feed it with `add`, then call `draw`. Safe to call from any thread.
    """

    def __init__(
        self,
        history: History,
        total_steps: int,
        show: Callable[[bytes], None],
        *,
        caption: str,
        quantity: Quantity = "wire_bytes",
    ) -> None:
        self.history = history
        self._lock = threading.Lock()
        self._plots = RunFigure(history, total_steps, caption=caption, quantity=quantity)
        self._live = LiveFigure(self._plots.figure, show)
        self._drawn_steps = 0
        self.draw(force=True)

    @property
    def frames(self) -> int:
        """How many frames were shown."""
        return self._live.frames

    def add(self, progress: Progress) -> None:
        """Takes in what is new."""
        with self._lock:
            self.history.add(progress)

    def draw(self, force: bool = False) -> bool:
        """Shows the history as it is, if anything is new and the frame rate allows it, or `force`.

        Returns:
            Whether there is a new frame.
        """
        with self._lock:
            if not force and not self._live.due:
                return False
            steps, memory = self.history.report.steps, self._plots.memory
            if force or steps != self._drawn_steps or memory.outgrown(self.history):
                self._live.invalidate(background=self._plots.update(self.history))
            elif not memory.point(self.history):
                return False
            self._drawn_steps = steps
            self._live.draw(self._plots.artists, memory.live_artists)
            return True

    def show_quantity(self, quantity: Quantity) -> None:
        """Changes which bytes the communication shows."""
        with self._lock:
            self._plots.communication.quantity = quantity
        self.draw(force=True)


def picture(figure: Figure) -> bytes:
    """A figure as a PNG in the figures' own colours, a quarter of the usual size."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return as_png(in_palette(np.asarray(canvas.buffer_rgba())))


def in_palette(rgba: Any) -> Image.Image:
    """A (height, width, 4) picture in the figures' own colours."""
    picture = Image.fromarray(rgba).convert("RGB")
    return picture.quantize(palette=_palette(), dither=Image.Dither.NONE)


def as_png(picture: Image.Image) -> bytes:
    """A picture as a PNG."""
    png = io.BytesIO()
    picture.save(png, "PNG", compress_level=3)
    return png.getvalue()


@cache
def _palette() -> Image.Image:
    """Greys for text and lines, and each colour on its way to white for smooth edges.

    A palette of our own keeps colours exact, and costs a fifth of finding one for each frame.
    """
    # None so near to white that the paper could be taken for it.
    greys = [(v, v, v) for v in (*range(0, 240, 5), 239, 255)]
    tints = {
        tuple(round(255 * (1 - part * (1 - v))) for v in to_rgb(colour))
        for colour in (*CATEGORY_COLOURS.values(), *OPERATION_COLOURS.values())
        for part in (1, 0.8, 0.6, 0.4, 0.2)
    }
    colours = [*greys, *sorted(tints)]
    assert len(colours) <= 256
    image = Image.new("P", (1, 1))
    image.putpalette([v for colour in colours for v in colour])
    return image
