"""How every figure looks: one colour per category and per operation, one unit per axis."""

from __future__ import annotations

import io
from typing import Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from parallab.report import CATEGORIES, OPERATIONS, Report

Quantity = Literal["payload_bytes", "wire_bytes"]

# Okabe and Ito, "Color Universal Design" (2008): told apart with every common colour vision. Their
# yellow is too faint on white, so what is left over is grey.
BLUE, SKY, GREEN, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
VERMILION, PINK = "#D55E00", "#CC79A7"
DARK_GREY, GREY, LIGHT_GREY = "#4D4D4D", "#8C8C8C", "#C4C4C4"

CATEGORY_COLOURS = {
    "parameters": BLUE,
    "gradients": ORANGE,
    "optimizer": GREEN,
    "activations": PINK,
    "buffers": DARK_GREY,
    "unsharded": SKY,
    "communication": VERMILION,
    "temporary": GREY,
    "workspace": LIGHT_GREY,
}
OPERATION_COLOURS = {
    "all_reduce": VERMILION,
    "all_gather": BLUE,
    "reduce_scatter": GREEN,
    "broadcast": ORANGE,
    "reduce": PINK,
    "gather": SKY,
    "scatter": DARK_GREY,
    "all_to_all": "#7A6A00",
    "send": GREY,
    "recv": LIGHT_GREY,
    "barrier": "#000000",
}
# A timeline's kinds of work; what else a meter may name is grey.
SPAN_COLOURS = {
    "forward": BLUE,
    "backward": ORANGE,
    "weight": PINK,
    "optimizer": GREEN,
    "communication": VERMILION,
}
AXIS_COLOURS = {"dp": BLUE, "pp": ORANGE, "tp": GREEN}
# The data axis is the common one and stays plain.
AXIS_HATCHES = {"dp": "", "pp": "////", "tp": "....", "world": "xxxx"}

assert tuple(CATEGORY_COLOURS) == CATEGORIES
assert tuple(OPERATION_COLOURS) == OPERATIONS

INK, MUTED, SPINE, GRID, PAPER_GREY = "#333333", "#6B6B6B", "#999999", "#DDDDDD", "#EFEFEF"
# What is predicted: so much of its colour, and a line on top.
PALE, DASHES = 0.4, (0, (4, 2))


def tint(colour: str, part: float) -> tuple[float, float, float]:
    """So much of a colour, the rest white. Parts are fifths: the live view's palette has those."""
    r, g, b = to_rgb(colour)
    return 1 - part * (1 - r), 1 - part * (1 - g), 1 - part * (1 - b)


class Unit(NamedTuple):
    """A binary unit: its name and its size in bytes."""

    name: str
    size_bytes: int


_UNITS = (Unit("TiB", 2**40), Unit("GiB", 2**30), Unit("MiB", 2**20), Unit("KiB", 2**10))


def unit_for(largest_bytes: float) -> Unit:
    """The unit in which the largest value of an axis is at least one."""
    return next((u for u in _UNITS if largest_bytes >= u.size_bytes), _UNITS[-1])


def in_words(amount_bytes: float, unit: Unit | None = None) -> str:
    """An amount for people, with three digits that count.

    >>> in_words(5_238_272), in_words(80 * 2**30), in_words(0)
    ('5.00 MiB', '80.0 GiB', '0')
    """
    if not amount_bytes:
        return "0"
    unit = unit or unit_for(amount_bytes)
    return f"{three_digits(amount_bytes / unit.size_bytes)} {unit.name}"


def three_digits(value: float) -> str:
    """A positive number with three digits that count, or all digits before the point."""
    return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f}"


def small_number(value: float) -> str:
    """A positive number where there is room for four characters."""
    return three_digits(value) if value >= 0.005 else "<.01"


def operation_title(op: str) -> str:
    """An operation's name as people write it: all-gather."""
    return op.replace("_", "-")


def rank_title(rank: int, device: str) -> str:
    """What a rank is called in a figure: GPU 0, or rank 0 (cpu)."""
    if not device:
        return f"rank {rank}"
    return f"GPU {rank}" if device.startswith("cuda") else f"rank {rank} ({device})"


def caption(report: Report) -> str:
    """Where a figure's numbers come from: its source, the model and the plan."""
    plan = report.plan
    order = f", {plan.schedule}" if plan.pp > 1 and plan.strategy != "mp" else ""
    return (
        f"{report.source} · {report.model.name} · {plan.strategy} on {plan.devices}{order} · "
        f"batch {plan.batch:,} × {plan.seq:,} · {plan.precision} · {plan.optimizer}"
    )


class ReportFigure(Figure):
    """A Figure that a notebook shows as the last value of a cell, without pyplot."""

    def __init__(self, width_inches: float, height_inches: float, dpi: float = 144) -> None:
        super().__init__(figsize=(width_inches, height_inches), dpi=dpi)
        FigureCanvasAgg(self)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        png = io.BytesIO()
        self.savefig(png, format="png")
        width, height = self.get_size_inches()
        # Twice the pixels for sharp screens: the page is told the size it should take.
        return png.getvalue(), {"width": round(width * 96), "height": round(height * 96)}


def heading(ax: Axes, words: str, above_points: float = 16) -> Annotation:
    """Writes what an Axes shows above its upper left corner."""
    return ax.annotate(
        words, (0, 1), (0, above_points), "axes fraction", textcoords="offset points",
        fontsize=10, weight="bold", color=INK, va="center",
    )  # fmt: skip


def plain_axes(ax: Axes) -> None:
    """Takes away what carries no data: two spines, long ticks, dark lines."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(SPINE)
    ax.tick_params(labelsize=7.5, color=SPINE, labelcolor=INK, length=2.5, pad=2)
    ax.grid(axis="y", color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)
