"""The scale panel without a browser: plans that grow, and points that are simulated."""

from __future__ import annotations

import threading
import types
from itertools import pairwise

import pytest

from parallab.errors import PlanError
from parallab.hardware import Hardware
from parallab.models.spec import Model
from parallab.panels import scaling
from parallab.panels.scale import Scale
from parallab.panels.scaling import DEVICES, STRATEGIES, Work, curves, plan_at, point_of
from parallab.plan import Plan
from parallab.plots.scale import STRATEGY_COLOURS, Point, plot_scale
from parallab.report import Communication, Memory, Rank, Report, Step
from tests.panels.reach import LONG, find, text
from tests.plots.look import words_in

GIB = 2**30
WORK = Work(Model("llama-3.1-8b"), 2, 4096, "bf16", "none")


def theory(model, plan, kernels="cuda", source="predicted"):
    """One rank stands for all of them."""
    peak = 100 * GIB // plan.devices + GIB
    sent = [Communication("all_reduce", "dp", "backward", 1, 3 * GIB, 2 * GIB)] * (plan.dp > 1)
    step = Step(0, None, None, False, Memory(peak, {"activations": peak}), sent)
    ranks = [Rank(0, plan.coordinates(0), "cpu", "", [step])]
    return Report(source, model, plan, {"represents": {"0": plan.devices}}, ranks)


@pytest.fixture
def simulate(monkeypatch):
    stand_in = types.SimpleNamespace(go=threading.Event(), begun=threading.Event(), calls=[])

    def simulated(model, plan, *, ranks=None, progress=None):
        stand_in.calls.append(plan)
        stand_in.begun.set()
        progress(1, 4, "stage 0")
        assert stand_in.go.wait(LONG)
        progress(4, 4, "stage 3")
        return theory(model, plan, source="simulated")

    monkeypatch.setattr("parallab.panels.theory.simulate", simulated)
    return stand_in


@pytest.fixture
def scale(monkeypatch):
    monkeypatch.setattr(scaling, "predicted", theory)
    scale = Scale()
    scale.wait(LONG)
    yield scale
    scale.close()


# Plans.


def test_devices_double_from_8_to_4096():
    assert DEVICES[0] == 8
    assert DEVICES[-1] == 4096
    assert all(b == 2 * a for a, b in pairwise(DEVICES))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_device_has_as_much_to_do(strategy):
    for devices in (8, 4096) if strategy not in ("pp", "tp") else (8,):
        plan = plan_at(WORK, strategy, devices)
        assert plan.strategy == strategy
        assert plan.devices == devices
        assert plan.batch == 2 * devices
        if strategy not in ("ddp", "zero1", "zero2", "zero3"):
            assert plan.micro_batch == 1


def test_compositions_keep_the_tensor_axis_inside_a_node():
    assert plan_at(WORK, "3d", 4096) == Plan(
        "3d", 4096, dp=64, pp=8, tp=8, batch=8192, seq=4096, micro_batches=128, precision="bf16"
    )
    plan = plan_at(WORK, "3d", 4096, gpus_per_node=4)
    assert (plan.dp, plan.pp, plan.tp) == (128, 8, 4)
    gpt2 = Work(Model("gpt2"), 1, 1024, "bf16", "none")
    assert plan_at(gpt2, "3d", 512).tp == 4
    small = plan_at(Work(Model("nano"), 1, 128, "fp32", "none"), "dp+pp", 64)
    assert (small.dp, small.pp) == (32, 2)


def test_what_goes_no_further_says_why():
    with pytest.raises(PlanError, match="fewer than the 64 stages"):
        plan_at(WORK, "pp", 64)
    with pytest.raises(PlanError, match="does not divide by tp=16"):
        plan_at(WORK, "tp", 16)


def test_curves_end_where_a_strategy_does(monkeypatch):
    monkeypatch.setattr(scaling, "predicted", theory)
    found, ends = curves(WORK, Hardware("h100"), "cuda")
    assert [len(found[name]) for name in ("ddp", "pp", "tp", "3d")] == [10, 3, 1, 10]
    assert set(ends) == {"pp", "tp"}
    point = found["ddp"][1]
    assert (point.devices, point.peak_bytes, point.sent_bytes) == (
        16, 100 * GIB // 16 + GIB, {"dp": 2 * GIB}
    )  # fmt: skip
    assert point.step_seconds > 0


# The figure.


def test_the_figure_says_what_is_predicted_estimated_and_simulated():
    points = {
        name: [Point(n, GIB * (i + 1), {"dp": GIB, "tp": n * GIB}, 0.5) for n in (8, 16)]
        for i, name in enumerate(("ddp", "3d"))
    }
    figure = plot_scale(
        points, "3d", "model", memory_bytes=80 * GIB, device="H100",
        simulated=[("3d", Point(16, GIB, {"dp": GIB}))],
    )  # fmt: skip
    words = words_in(figure)
    for word in (
        "Memory per rank, predicted", "Sent per step, 3d, predicted", "Time of a step, estimated",
        "H100: 80.0 GiB", "simulated",
    ):  # fmt: skip
        assert word in words
    memory, sent, _ = figure.axes
    assert [line.get_ydata()[0] for line in memory.lines[:2]] == [1, 2]
    assert [bar.get_height() for bar in sent.patches] == [1, 1, 8, 16]
    assert "simulated" not in words_in(plot_scale(points, "ddp", "model"))


def test_every_strategy_has_a_colour_of_its_own():
    assert set(STRATEGY_COLOURS) == set(STRATEGIES)
    assert len(set(STRATEGY_COLOURS.values())) == len(STRATEGIES)


# The panel.


def test_it_opens_with_all_curves(scale):
    assert set(scale.curves) == set(STRATEGIES)
    assert len(scale.curves["zero3"]) == 10
    assert len(bytes(scale._image.value)) > 5000
    assert "<b>pp</b> goes no further: llama-3.1-8b has 32 layers" in text(scale)


def test_another_strategy_is_drawn(scale):
    before = bytes(scale._image.value)
    find(scale, "pl-scale-strategy-zero3").click()
    scale.wait(LONG)
    assert bytes(scale._image.value) != before
    assert "zero3 on 64" in text(scale)


def test_a_point_that_cannot_be_is_grey_and_says_why(scale):
    find(scale, "pl-scale-strategy-tp").click()
    scale.wait(LONG)
    button = find(scale, "pl-simulate-point")
    assert button.disabled
    assert "does not divide by tp=64" in button.tooltip


def test_a_model_that_cannot_be_built_is_not_simulated(scale):
    mixture = Model("mixture", layers=4, hidden=64, heads=4, ffn=128, vocab=256, experts=4,
                    experts_per_token=2, expert_ffn=64)  # fmt: skip
    scale.offer(mixture)
    scale._menu.widget.value = "mixture"
    find(scale, "pl-scale-strategy-ddp").click()
    scale.wait(LONG)
    assert "mixture of experts" in find(scale, "pl-simulate-point").tooltip


def test_a_point_is_simulated_and_compared(scale, simulate):
    simulate.go.set()
    find(scale, "pl-scale-devices-512").click()
    find(scale, "pl-simulate-point").click()
    scale.wait(LONG)
    assert [plan.devices for plan in simulate.calls] == [512]
    assert "<b>3d on 512</b>: peak simulated 1.20 GiB, predicted the same to the byte" in text(
        scale
    )
    assert point_of(scale.simulated[0][1]).peak_bytes == 100 * GIB // 512 + GIB
    assert find(scale, "pl-simulate-point").description == "Simulate this point"


def test_a_simulation_shows_its_progress_and_can_be_stopped(scale, simulate):
    find(scale, "pl-simulate-point").click()
    assert simulate.begun.wait(LONG)
    button = find(scale, "pl-simulate-point")
    assert button.description == "Stop"
    button.click()
    simulate.go.set()
    scale.wait(LONG)
    assert scale.simulated == []
    assert button.description == "Simulate this point"
    assert not button.disabled


def test_other_inputs_forget_what_was_simulated(scale, simulate):
    simulate.go.set()
    find(scale, "pl-simulate-point").click()
    scale.wait(LONG)
    assert len(scale.simulated) == 1
    scale._device_batch.value = 4
    scale.wait(LONG)
    assert scale.simulated == []
    assert "simulated" not in scale._found.value


def test_what_fails_is_shown(scale, monkeypatch):
    monkeypatch.setattr("parallab.panels.theory.simulate", None)
    find(scale, "pl-simulate-point").click()
    scale.wait(LONG)
    assert "TypeError" in scale._error.value
    assert not find(scale, "pl-simulate-point").disabled


def test_closing_leaves_no_widget_behind(scale):
    from ipywidgets.widgets import widget as ipywidgets_widget

    before = set(ipywidgets_widget._instances)
    other = Scale()
    other.wait(LONG)
    other.close()
    assert set(ipywidgets_widget._instances) == before
