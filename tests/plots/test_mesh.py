"""The mesh as a picture: every rank in its place, and what each axis carries."""

from __future__ import annotations

import pytest

from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.plots import plot_mesh
from parallab.plots.mesh import carried
from parallab.plots.style import AXIS_COLOURS
from tests.plots.look import words_in

MICRO = Model("micro")


def place(figure, words: str) -> tuple[float, float]:
    (text,) = [t for t in figure.axes[0].texts if t.get_text() == words]
    x, y = text.get_position()
    return round(x, 2), round(y, 2)


def test_tensor_neighbours_touch_replicas_stand_above_and_stages_apart():
    figure = plot_mesh(MICRO, Plan("3d", dp=2, pp=2, tp=2, batch=16), gpus_per_node=4)
    (x, y), right, below, stage = (place(figure, rank) for rank in ("0", "1", "2", "4"))
    assert right == (pytest.approx(x + 0.62), y)
    assert below == (x, pytest.approx(y + 1.1))
    assert stage == (pytest.approx(x + 2 * 0.62 + 0.9), y)
    words = words_in(figure)
    assert words.count("node 0") == words.count("node 1") == 4


def test_the_legend_says_what_each_axis_carries_and_how_much():
    figure = plot_mesh(MICRO, Plan("dp+pp", dp=2, pp=2, batch=16))
    (legend,) = figure.legends
    lines = [text.get_text() for text in legend.texts]
    assert lines[0].startswith("pp: 512 KiB a step from the rank that sends most: activations to")
    assert lines[1].startswith("dp: 2.00 MiB a step from the rank that sends most: gradients, sum")
    colours = [line.get_color() for line in legend.get_lines()]
    assert colours == [AXIS_COLOURS["pp"], AXIS_COLOURS["dp"]]


def test_what_the_data_axis_carries_depends_on_what_is_sharded():
    said = {carried(Plan(s, devices=4), "dp") for s in ("ddp", "zero1", "zero2", "zero3", "dp")}
    assert len(said) == 4  # ZeRO-1 and ZeRO-2 send the same


def test_too_many_ranks_are_refused():
    with pytest.raises(ValueError, match="128 ranks are too many for one picture: 64 go"):
        plot_mesh(MICRO, Plan("ddp", devices=128))
