"""Many short texts as one artist.

A matplotlib Text costs most of a millisecond a frame, and a timeline has hundreds of numbers. As
outlines in one collection they cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D, IdentityTransform, Transform

Align = Literal["left", "center", "right"]
# DejaVu Sans, matplotlib's own font, in multiples of its size.
HALF_A_DIGIT = 0.365
_DRAWN_AT = 100.0


class Label(NamedTuple):
    """A text at a point, with the middle of its height there."""

    words: str
    x: float
    y: float
    colour: str


class Labels:
    """Texts of one size in an Axes.

    Args:
        points: size of the font.
        align: which part of a text its point is.
        weight: of the font.
        where: what x and y mean, unless they are data.

    Attributes:
        artist: what `show` changes.
        shown: the texts.
    """

    def __init__(
        self,
        ax: Axes,
        points: float,
        align: Align = "center",
        where: Transform | None = None,
        weight: Literal["normal", "bold"] = "normal",
    ) -> None:
        self.artist = PathCollection(
            [], sizes=[points**2], transform=IdentityTransform(), linewidths=0,
            offset_transform=where or ax.transData, clip_on=where is None,
        )  # fmt: skip
        self.shown: list[Label] = []
        self._align, self._weight = align, weight
        ax.add_collection(self.artist, autolim=False)

    def show(self, labels: Sequence[Label]) -> None:
        """Replaces all texts."""
        self.shown = list(labels)
        paths = [_outline(label.words, self._align, self._weight) for label in labels]
        self.artist.set_paths(paths)
        places = np.array([(label.x, label.y) for label in labels]).reshape(-1, 2)
        self.artist.set_offsets(places)
        self.artist.set_facecolor([label.colour for label in labels])


@lru_cache(maxsize=4096)
def width_ems(words: str) -> float:
    """How wide a text is, in multiples of its size."""
    return float(np.ptp(np.asarray(_outline(words, "left", "normal").vertices)[:, 0]))


@lru_cache(maxsize=4096)
def _outline(words: str, align: Align, weight: str) -> Path:
    """A text of size 1 beside or around x = 0, its digits as far above y = 0 as below."""
    if not words:
        return Path(np.empty((0, 2)))
    path = TextPath((0, 0), words, size=_DRAWN_AT, prop=FontProperties(weight=weight))
    x = np.asarray(path.vertices)[:, 0]
    at = {"left": x.min(), "center": (x.min() + x.max()) / 2, "right": x.max()}[align]
    placed = Affine2D().scale(1 / _DRAWN_AT).translate(-at / _DRAWN_AT, -HALF_A_DIGIT)
    return placed.transform_path(path)
