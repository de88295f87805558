"""What a picture shows: its words, and how much of it has a colour."""

from __future__ import annotations

import io

import numpy as np
from matplotlib.legend import Legend
from PIL import Image


def words_in(figure) -> str:
    texts = [t.get_text() for ax in figure.axes for t in ax.texts]
    labels = [f"{ax.get_xlabel()} {ax.get_ylabel()}" for ax in figure.axes]
    legends = [
        text.get_text()
        for legend in figure.findobj(Legend)
        for text in (legend.get_title(), *legend.texts)
    ]
    return "\n".join([*texts, *labels, *legends, *(t.get_text() for t in figure.texts)])


def near(picture, colour: str) -> int:
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return int((np.abs(picture.astype(int) - rgb).max(axis=2) <= 3).sum())


def picture_of(png: bytes):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
