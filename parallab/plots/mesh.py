"""Where each rank is on the mesh, and what passes between ranks on each axis.

stage 0          stage 1
[0][1]  ──────▶  [4][5]     tensor parallel ranks side by side, pipeline stages left to right,
  │                │        replicas one above the other
[2][3]  ──────▶  [6][7]
"""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.plots.memory import caption_on
from parallab.plots.style import (
    AXIS_COLOURS,
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PINK,
    ReportFigure,
    in_words,
    tint,
)
from parallab.predict import predict
from parallab.sweep import sent_by_axis

# More would be too small to read.
MOST_RANKS = 64
NODE_COLOURS = (BLUE, ORANGE, GREEN, PINK)
_BOX, _GAP_X, _GAP_Y = 0.62, 0.9, 0.48  # inches


def plot_mesh(model: Model, plan: Plan, gpus_per_node: int | None = None) -> ReportFigure:
    """The ranks of a plan on their mesh, and how many bytes each axis carries, as predicted.

    Args:
        gpus_per_node: colours the ranks by the node that they are on.

    Raises:
        ValueError: more ranks than can be told apart.
    """
    if plan.devices > MOST_RANKS:
        raise ValueError(f"{plan.devices} ranks are too many for one picture: {MOST_RANKS} go.")
    axes = [axis for axis in ("tp", "pp", "dp") if getattr(plan, axis) > 1]
    cell, row = plan.tp * _BOX, _BOX + _GAP_Y
    wide = plan.pp * cell + (plan.pp - 1) * _GAP_X
    high = plan.dp * row - _GAP_Y
    words = 0.24 * len(axes) + 0.15
    width, height = max(wide + 1.6, 7.6), high + words + 0.95
    figure = ReportFigure(width, height)
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.axis("off")
    left, top = (width - wide) / 2 + 0.2, 0.7
    places = {
        rank: (left + at["pp"] * (cell + _GAP_X) + at["tp"] * _BOX, top + at["dp"] * row)
        for rank in range(plan.devices)
        for at in (plan.coordinates(rank),)
    }
    _draw_lines(ax, plan, places, cell)
    _draw_ranks(ax, places, gpus_per_node)
    _name_places(ax, plan, left, top, cell, row)
    _explain(figure, model, plan, axes, height, top + high + 0.3)
    caption_on(figure, f"predicted · {model.name} · {plan}")
    return figure


def _draw_ranks(
    ax: Axes, places: dict[int, tuple[float, float]], gpus_per_node: int | None
) -> None:
    for rank, (x, y) in places.items():
        node = rank // gpus_per_node if gpus_per_node else 0
        colour = tint(NODE_COLOURS[node % len(NODE_COLOURS)], 0.2) if gpus_per_node else "white"
        ax.add_patch(FancyBboxPatch(
            (x + 0.04, y + 0.04), _BOX - 0.08, _BOX - 0.08,
            boxstyle="round,pad=0,rounding_size=.06", facecolor=colour, edgecolor=INK,
            linewidth=0.9, zorder=3,
        ))  # fmt: skip
        ax.text(x + _BOX / 2, y + _BOX / 2 - 0.02, str(rank), ha="center", va="center",
                fontsize=10.5, color=INK, zorder=4)  # fmt: skip
        if gpus_per_node:
            ax.text(x + _BOX / 2, y + _BOX - 0.1, f"node {node}", ha="center", va="center",
                    fontsize=5.5, color=MUTED, zorder=4)  # fmt: skip


def _draw_lines(ax: Axes, plan: Plan, places: dict[int, tuple[float, float]], cell: float) -> None:
    """One line for each pair of neighbours on an axis; of tensor slices only the first shows pp."""
    for rank, (x, y) in places.items():
        at = plan.coordinates(rank)
        if at["tp"] + 1 < plan.tp:
            ax.plot([x + _BOX - 0.12, x + _BOX + 0.12], [y + _BOX / 2] * 2, linewidth=5,
                    color=AXIS_COLOURS["tp"], solid_capstyle="butt", zorder=5)  # fmt: skip
        if at["dp"] + 1 < plan.dp:
            ax.plot([x + _BOX / 2] * 2, [y + _BOX - 0.02, y + _BOX + _GAP_Y + 0.02], linewidth=2,
                    color=AXIS_COLOURS["dp"], zorder=2)  # fmt: skip
        if at["pp"] + 1 < plan.pp and at["tp"] == 0:
            middle = y + _BOX / 2
            ax.add_patch(FancyArrowPatch(
                (x + cell - 0.02, middle), (x + cell + _GAP_X + 0.02, middle), arrowstyle="<|-|>",
                mutation_scale=9, color=AXIS_COLOURS["pp"], linewidth=2, zorder=2, shrinkA=0,
                shrinkB=0,
            ))  # fmt: skip


def _name_places(ax: Axes, plan: Plan, left: float, top: float, cell: float, row: float) -> None:
    look: dict[str, Any] = dict(fontsize=8.5, color=MUTED, va="center")
    if plan.pp > 1:
        for stage in range(plan.pp):
            x = left + stage * (cell + _GAP_X) + cell / 2
            ax.text(x, top - 0.16, f"stage {stage}", ha="center", **look)
    if plan.dp > 1:
        for replica in range(plan.dp):
            y = top + replica * row + _BOX / 2
            ax.text(left - 0.14, y, f"replica {replica}", ha="right", **look)


def _explain(
    figure: ReportFigure, model: Model, plan: Plan, axes: list[str], height: float, y: float
) -> None:
    """What each axis carries, and how much of it."""
    sent = sent_by_axis(predict(model, plan))
    handles = [
        Line2D([], [], color=AXIS_COLOURS[axis], linewidth=3,
               label=f"{axis}: {in_words(sent.get(axis, 0))} a step from the rank that sends most: "
                     f"{carried(plan, axis)}")
        for axis in axes
    ]  # fmt: skip
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.02, 1 - y / height), fontsize=8.5,
        frameon=False, labelcolor=INK, handlelength=1.4, borderpad=0, labelspacing=0.45,
    )  # fmt: skip


def carried(plan: Plan, axis: str) -> str:
    """What the ranks of an axis send to one another, in words."""
    if axis == "tp":
        return "activations of every layer, there and back"
    if axis == "pp":
        return "activations to the next stage, their gradients to the one before"
    match plan.data:
        case "zero1" | "zero2":
            return "gradients to their owners, new weights to all"
        case "zero3":
            return "weights before every use, gradients to their owners"
        case "dp":
            return "weights and batch from rank 0, outputs and gradients to it"
    return "gradients, summed up by all"
