"""One picture for the idea of each strategy, drawn from plans: what is split, sent, and waited for.

    plot_states      what a rank holds of weights, gradients and optimizer state
    plot_exchange    who sends how much to whom
    plot_schedules   in which order a pipeline's ranks work
    plot_split       which part of two matrices each tensor-parallel rank holds

Nothing here is measured; every figure says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch, Patch, Rectangle

from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.plots.memory import caption_on
from parallab.plots.style import (
    BLUE,
    CATEGORY_COLOURS,
    GREEN,
    GREY,
    INK,
    MUTED,
    ORANGE,
    PINK,
    ReportFigure,
    heading,
    in_words,
    plain_axes,
    tint,
    unit_for,
)
from parallab.predict import predict
from parallab.predict.bubble import UNITS, bubble
from parallab.predict.memory import model_states
from parallab.schedules import Kind, Slot, orders, planned
from parallab.stages import stages_per_rank
from parallab.units import percent

RANK_COLOURS = (BLUE, ORANGE, GREEN, PINK)
PASS_COLOURS: dict[Kind, str] = {
    "forward": BLUE, "backward": ORANGE, "input": ORANGE, "weight": PINK
}  # fmt: skip
PASS_WORDS: dict[Kind, str] = {
    "forward": "forward",
    "backward": "backward",
    "input": "backward of the input",
    "weight": "backward of the weights",
}
WIDTH_INCHES = 9.4


def plot_states(model: Model, plans: Sequence[Plan]) -> ReportFigure:
    """Model states of rank 0 under each plan, by closed forms (arXiv:1910.02054, figure 1)."""
    figure = ReportFigure(WIDTH_INCHES, 0.42 * len(plans) + 1.25)
    height = figure.get_size_inches()[1]
    ax = figure.add_axes((0.12, 0.42 / height, 0.84, 0.42 * len(plans) / height))
    states = [model_states(model, plan) for plan in plans]
    unit = unit_for(max(sum(held.values()) for held in states))
    for row, held in enumerate(states):
        left = 0.0
        for category, size in held.items():
            width = size / unit.size_bytes
            ax.barh(row, width, 0.66, left, color=CATEGORY_COLOURS[category])
            left += width
        ax.text(left, row, f"  {in_words(sum(held.values()))}", va="center", fontsize=8, color=INK)
    ax.set_yticks(range(len(plans)), [plan.strategy for plan in plans])
    ax.set_ylim(len(plans) - 0.5, -0.5)
    ax.set_xlim(0, 1.14 * max(sum(held.values()) for held in states) / unit.size_bytes)
    plain_axes(ax)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel(f"{unit.name} on rank 0", fontsize=8, color=MUTED, labelpad=1)
    handles = [Patch(color=CATEGORY_COLOURS[name], label=name) for name in states[0]]
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.115, 1 - 0.34 / height), ncols=3,
        frameon=False, fontsize=8, labelcolor=INK, handlelength=1, borderpad=0,
    )  # fmt: skip
    precisions = ", ".join(dict.fromkeys(f"{p.precision}, {p.optimizer}" for p in plans))
    devices = ", ".join(dict.fromkeys(str(plan.devices) for plan in plans))
    caption_on(figure, f"by closed forms · {model.name} on {devices} · {precisions}")
    return figure


def plot_exchange(model: Model, plans: Sequence[Plan]) -> ReportFigure:
    """Bytes from rank to rank in a step, as predicted for ideal rings; wider arrows carry more."""
    figure = ReportFigure(3.1 * len(plans), 3.5)
    reports = [predict(model, plan) for plan in plans]
    traffic = [
        {
            (rank.rank, to): size
            for rank in report.ranks
            for to, size in rank.steps[0].traffic.items()
        }
        for report in reports
    ]
    widest = max((size for sent in traffic for size in sent.values()), default=1)
    for at, (plan, sent) in enumerate(zip(plans, traffic, strict=True)):
        ax = figure.add_axes((at / len(plans), 0.02, 1 / len(plans), 0.8))
        ax.set(xlim=(-1.5, 1.5), ylim=(-1.5, 1.4), aspect="equal")
        ax.axis("off")
        _draw_exchange(ax, plan.devices, sent, widest)
        busiest = max(
            sum(size for (rank, _), size in sent.items() if rank == who)
            for who in range(plan.devices)
        )
        ax.text(0, 1.36, plan.strategy, ha="center", fontsize=10, weight="bold", color=INK)
        ax.text(0, -1.45, f"the busiest rank sends {in_words(busiest)}", ha="center", fontsize=8,
                color=MUTED)  # fmt: skip
    caption_on(figure, f"predicted · {model.name} · bytes of a step on ideal rings")
    return figure


def _draw_exchange(ax: Axes, ranks: int, sent: dict[tuple[int, int], int], widest: int) -> None:
    angles = [math.pi / 2 - 2 * math.pi * rank / ranks for rank in range(ranks)]
    places = [(math.cos(angle), math.sin(angle)) for angle in angles]
    for (rank, to), size in sent.items():
        ax.add_patch(FancyArrowPatch(
            places[rank], places[to], connectionstyle="arc3,rad=0.14", arrowstyle="-|>",
            mutation_scale=11, shrinkA=17, shrinkB=17, linewidth=0.6 + 4 * size / widest,
            color=tint(RANK_COLOURS[rank % 4], 0.8),
        ))  # fmt: skip
    for rank, (x, y) in enumerate(places):
        colour = RANK_COLOURS[rank % 4]
        ax.add_patch(Circle((x, y), 0.22, facecolor=tint(colour, 0.2), edgecolor=colour))
        ax.text(x, y - 0.01, str(rank), ha="center", va="center", fontsize=10, color=INK)


def plot_schedules(plans: Sequence[Plan]) -> ReportFigure:
    """The planned order of pipelines, with a backward pass twice as long as a forward pass.

    Raises:
        ValueError: a plan without a pipeline.
    """
    flat = [plan.strategy for plan in plans if plan.pp == 1]
    if flat:
        raise ValueError(f"{', '.join(flat)} has no pipeline to draw; a plan with pp=4 has one.")
    drawn = [_planned(plan) for plan in plans]
    inches = [0.21 * plan.pp for plan in plans]
    height = sum(inches) + 0.42 * len(plans) + 0.75
    figure = ReportFigure(WIDTH_INCHES, height)
    longest = max(slot.end for slots in drawn for rank in slots for slot in rank)
    top = height - 0.62
    for plan, slots, high in zip(plans, drawn, inches, strict=True):
        top -= high + 0.1
        ax = figure.add_axes((0.07, top / height, 0.91, high / height))
        top -= 0.32
        ax.set(xlim=(0, longest), ylim=(plan.pp - 0.5, -0.5), xticks=[])
        ax.set_yticks(range(plan.pp), [f"rank {rank}" for rank in range(plan.pp)])
        ax.tick_params(labelsize=7, labelcolor=INK, length=0)
        ax.spines[:].set_visible(False)
        _draw_schedule(ax, slots, numbers=longest < 60)
        lost = bubble(plan)
        assert lost is not None
        name = (
            "one micro-batch" if plan.micro_batches == 1 else f"{plan.micro_batches} micro-batches"
        )
        title = plan.strategy if plan.strategy == "mp" else plan.schedule
        heading(ax, f"{title}, {name}: idle {percent(lost.idle_of_total)} of the time", 9)
    kinds = {slot.work.kind for slots in drawn for rank in slots for slot in rank}
    handles = [
        Patch(color=PASS_COLOURS[k], label=PASS_WORDS[k]) for k in PASS_COLOURS if k in kinds
    ]
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.06, 1 - 0.02 / height), ncols=4,
        frameon=False, fontsize=8, labelcolor=INK, handlelength=1, borderpad=0,
    )  # fmt: skip
    caption_on(figure, "planned · a backward pass takes as long as two forward passes")
    return figure


def _planned(plan: Plan) -> list[list[Slot]]:
    """When each pass runs, in forward passes of a whole rank: of two stages each is half of it."""
    part = 1 / stages_per_rank(plan.schedule)
    seconds = {kind: part * length for kind, length in UNITS.items()}
    return planned(orders(plan.schedule, plan.pp, plan.micro_batches), seconds)


def _draw_schedule(ax: Axes, slots: Sequence[Sequence[Slot]], *, numbers: bool) -> None:
    end = max(slot.end for rank in slots for slot in rank)
    ax.axvspan(0, end, color="#F1F1F1", linewidth=0)
    for rank, row in enumerate(slots):
        first = min(slot.work.stage for slot in row)
        for slot in row:
            part = 0.9 if slot.work.stage == first else 0.55
            ax.add_patch(Rectangle(
                (slot.start, rank - 0.44), slot.end - slot.start, 0.88, linewidth=0.8,
                facecolor=tint(PASS_COLOURS[slot.work.kind], part), edgecolor="white",
            ))  # fmt: skip
            if numbers:
                ax.text((slot.start + slot.end) / 2, rank + 0.03, str(slot.work.micro_batch),
                        ha="center", va="center", fontsize=5.5,
                        color="white" if slot.work.stage == first else INK)  # fmt: skip


def plot_split(plan: Plan, model: Model) -> ReportFigure:
    """A block's two products: the first matrix by columns, the second by rows, then a sum.

    Raises:
        ValueError: a plan without a tensor axis.
    """
    if plan.tp == 1:
        raise ValueError(f"{plan.strategy} splits no matrix; a plan with tp=4 does.")
    figure = ReportFigure(WIDTH_INCHES, 2.9)
    ax = figure.add_axes((0.01, 0.0, 0.98, 0.86))
    ax.set(xlim=(0, 9.2), ylim=(2.5, 0), aspect="equal")
    ax.axis("off")
    # x (tokens × hidden) · A (hidden × ffn) = (tokens × ffn); · B (ffn × hidden) = a partial sum.
    _matrix(ax, 0.3, 0.7, 0.8, 0.9, "x", f"{model.hidden} wide, on every rank")
    _sign(ax, 1.3, "×")
    _matrix(ax, 1.5, 0.75, 1.7, 0.8, "A: up", f"{model.hidden} × {model.ffn}", plan.tp, "columns")
    _sign(ax, 3.4, "=")
    _matrix(ax, 3.6, 0.7, 1.7, 0.9, "inner", f"{model.ffn} wide, {model.ffn // plan.tp} a rank",
            plan.tp, "columns")  # fmt: skip
    _sign(ax, 5.5, "×")
    _matrix(ax, 5.7, 0.3, 0.8, 1.7, "B: down", f"{model.ffn} × {model.hidden}", plan.tp, "rows")
    _sign(ax, 6.7, "=")
    _matrix(ax, 7.3, 0.7, 0.8, 0.9, "y", "a partial sum on each rank", plan.tp, "sum")
    ax.text(
        8.75, 1.15, "all-reduce", ha="center", va="center", fontsize=9, weight="bold", color=INK
    )
    ax.add_patch(FancyArrowPatch((8.4, 1.35), (9.15, 1.35), arrowstyle="-|>", mutation_scale=11,
                                 color=INK, linewidth=1.2))  # fmt: skip
    figure.legend(
        handles=[Patch(color=RANK_COLOURS[r % 4], label=f"rank {r}") for r in range(plan.tp)],
        loc="upper left", bbox_to_anchor=(0.02, 0.99), ncols=plan.tp, frameon=False, fontsize=8,
        labelcolor=INK, handlelength=1, borderpad=0,
    )  # fmt: skip
    caption_on(figure, f"drawn · one MLP of {model.name} on tp={plan.tp} · forward pass")
    return figure


def _sign(ax: Axes, x: float, sign: str) -> None:
    ax.text(x, 1.15, sign, ha="center", va="center", fontsize=13, color=INK)


def _matrix(
    ax: Axes, x: float, y: float, width: float, height: float, name: str, size: str,
    parts: int = 1, cut: str = "",
) -> None:  # fmt: skip
    """A matrix in as many parts as ranks, or as many partial sums behind one another."""
    ax.text(x + width / 2, y - 0.12, name, ha="center", fontsize=9, weight="bold", color=INK)
    ax.text(x + width / 2, 2.2, size, ha="center", fontsize=7.5, color=MUTED)
    for part in range(parts):
        colour = RANK_COLOURS[part % 4] if cut else GREY
        box = (x, y, width, height)
        if cut == "columns":
            box = (x + part * width / parts, y, width / parts, height)
        elif cut == "rows":
            box = (x, y + part * height / parts, width, height / parts)
        elif cut == "sum":
            box = (x + 0.16 - 0.1 * part, y + 0.1 * part, width, height)
        ax.add_patch(Rectangle(
            box[:2], *box[2:], facecolor=tint(colour, 0.8), edgecolor="white", linewidth=1.2
        ))  # fmt: skip
