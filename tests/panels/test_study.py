"""A model on more and more GPUs, without the panel: points, limits, and a simulated one."""

from __future__ import annotations

from parallab.hardware import Hardware
from parallab.models.spec import Model
from parallab.panels.study import Scaling
from tests.plots.look import words_in


def test_where_each_strategy_fits_pays_and_ends():
    scaling = Scaling("llama-3.1-8b", Hardware("h100"), recompute="full")
    table = scaling.limits()
    rows = {row[0]: row for row in table.rows}
    assert list(rows) == ["ddp", "zero1", "zero2", "zero3", "pp", "tp", "dp+pp", "3d"]
    # A copy of 8 billion parameters takes 16 bytes each: no number of GPUs makes it smaller.
    assert rows["ddp"][1] == "nowhere"
    assert rows["zero3"][1] == "8 GPUs"
    # Eight key and value heads, 32 layers.
    assert rows["tp"][-1] == "at 8"
    assert rows["pp"][-1] == "at 32"
    assert rows["zero3"][-1] == "–"
    assert set(scaling.ends) == {"tp", "pp"}
    assert "kv_heads=8" in scaling.ends["tp"]
    assert "times estimated" in table.caption


def test_pays_as_long_as_the_pace_is_near_the_best():
    scaling = Scaling("llama-3.1-8b", strategies=("ddp",))
    points = scaling.curves["ddp"]
    for point, seconds in zip(points, (1.0, 0.9, 1.0, 1.01, *[2.0] * 6), strict=True):
        point.step_seconds = seconds
    (row,) = scaling.limits().rows
    assert row[2] == "32 GPUs"  # 0.9 of the pace at 16, not at 64


def test_a_simulated_point_is_kept_and_shown():
    scaling = Scaling(Model("nano"), seq=32, strategies=("ddp", "zero3"))
    report = scaling.simulate("zero3", 16)
    assert (report.source, report.plan.devices, report.plan.batch) == ("simulated", 16, 16)
    assert scaling.simulated == [("zero3", report)]
    words = words_in(scaling.plot("zero3"))
    assert "simulated" in words
    assert "Time of a step, estimated" in words
