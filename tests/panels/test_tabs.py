"""The panels together: each is built when it is first opened, and hands plans to the others."""

from __future__ import annotations

import json
import threading

import ipywidgets as widgets
import pytest

from parallab.errors import ClusterError, PlanError
from parallab.models.spec import Model
from parallab.panels import Lab
from parallab.panels import scaling as scaling_module
from parallab.panels.tabs import Tabs
from parallab.plan import Plan
from tests.models.rows import LLAMA
from tests.panels.reach import LONG, click, find
from tests.panels.test_scale import theory
from tests.synthetic import FakeRunner, fake_report


@pytest.fixture
def lab(make, monkeypatch):
    monkeypatch.setattr(scaling_module, "predicted", theory)
    return make()


class Built:
    """A panel that counts."""

    def __init__(self) -> None:
        self.widget, self.closed = widgets.VBox(), False

    def close(self) -> None:
        self.closed = True
        self.widget.close()


def opened_by_click(tabs: Tabs, name: str) -> None:
    before = set(threading.enumerate())
    tabs._clicked(name)
    for thread in set(threading.enumerate()) - before:
        thread.join(LONG)


def shown(tabs: Tabs) -> list[bool]:
    return ["pl-hidden" not in panel.widget._dom_classes for panel in tabs.opened]


def test_a_panel_is_built_when_it_is_first_opened():
    built = []

    def builder(name):
        def build():
            built.append(name)
            return Built()

        return build

    tabs = Tabs({name: builder(name) for name in ("One", "Two", "Three")})
    assert built == ["One"]
    opened_by_click(tabs, "Two")
    assert built == ["One", "Two"]
    assert shown(tabs) == [False, True]
    opened_by_click(tabs, "One")
    assert built == ["One", "Two"]
    assert shown(tabs) == [True, False]
    panels = tabs.opened
    tabs.close()
    assert all(panel.closed for panel in panels)
    opened_by_click(tabs, "Three")
    assert built == ["One", "Two"]


def test_a_panel_that_cannot_be_built_says_so():
    tabs = Tabs({"One": Built, "Two": lambda: 1 / 0})
    opened_by_click(tabs, "Two")
    assert "ZeroDivisionError" in tabs._error.value
    assert shown(tabs) == [True]
    opened_by_click(tabs, "One")
    assert tabs._error.value == ""


def test_the_lab_opens_on_run_and_has_nothing_else_yet(lab):
    assert lab._tabs.open_name == "Run"
    assert lab._tabs.opened == [lab.panel]
    for name in ("run", "calculator", "advisor", "scale"):
        assert find(lab, f"pl-tab-{name}")


def test_run_still_works_beside_the_others(lab):
    assert lab.calculator.widget is not lab.advisor.widget
    report = lab.run(Model("nano"), Plan("ddp", devices=2), 2)
    assert report.steps == 2
    assert shown(lab._tabs)[0]


def test_a_plan_goes_from_the_advisor_to_run(lab):
    plan = Plan("zero3", 8, batch=16, seq=64)
    lab._run_this(Model("micro"), plan, None)
    assert lab._tabs.open_name == "Run"
    assert lab.panel.controls.plan == plan
    assert lab.panel.controls.model == Model("micro")


@pytest.mark.parametrize(
    ("model", "plan", "words"),
    [
        (Model("mini"), Plan("zero3", 16), "for 16 devices, and a lab here has at most 8"),
        (Model("llama-3.1-70b"), Plan("zero3", 8), "needs at least"),
        (Model("mixed", layers=2, hidden=64, heads=4, ffn=64, vocab=256, experts=4,
               experts_per_token=2, expert_ffn=64), Plan("ddp", 2), "predicted but not trained"),
        (Model("nano"), Plan("ddp", 2, seq=8192), "longer than the 1024 tokens"),
    ],
)  # fmt: skip
def test_what_cannot_run_here_says_why(lab, model, plan, words):
    assert words in lab.panel.why_not(model, plan)
    before = lab.panel.controls.plan
    with pytest.raises(PlanError, match=words):
        lab._run_this(model, plan, None)
    assert lab.panel.controls.plan == before


def test_nothing_is_taken_over_during_a_run_or_in_a_replay(lab):
    lab.panel.runner.gate = threading.Event()
    lab.panel.start()
    with pytest.raises(ClusterError, match="A run is under way in the run panel"):
        lab._run_this(Model("nano"), Plan("ddp", 2), None)
    # No reason for the advisor to grey it out: that would outlast the run.
    assert lab.panel.why_not(Model("nano"), Plan("ddp", 2)) is None
    lab.panel.runner.gate.set()
    lab.panel.wait(LONG)
    assert lab.panel.why_not(Model("nano"), Plan("ddp", 2)) is None
    replay = Lab(replay=fake_report("ddp", devices=2, steps=2))
    assert "replays" in replay.panel.why_not(Model("nano"), Plan("ddp", 2))
    replay.close()


def test_a_plan_goes_from_the_advisor_to_the_calculator(lab):
    plan = Plan("zero3", 64, precision="bf16", seq=4096)
    lab._calculate(Model("llama-3.1-8b"), plan, "h200")
    lab.calculator.wait(LONG)
    assert lab._tabs.open_name == "Calculator"
    assert lab.calculator.report.plan == plan
    assert lab.calculator.card.name == "H200 SXM"


def test_a_pasted_model_can_be_chosen_everywhere(lab):
    scale = lab.scale
    find(lab.calculator, "pl-config").value = json.dumps(LLAMA)
    lab.calculator.wait(LONG)
    for panel in (scale, lab.advisor):
        assert "llama (pasted)" in [name for _, name in panel._menu.widget.options]


def test_closing_closes_all(lab):
    from ipywidgets.widgets import widget as ipywidgets_widget

    before = set(ipywidgets_widget._instances)
    other = Lab(runner=FakeRunner())
    for panel in (other.calculator, other.advisor, other.scale):
        panel.wait(LONG)
    other.close()
    assert set(ipywidgets_widget._instances) == before


def test_a_click_on_a_tab_opens_it(lab):
    click(lab, "pl-tab-advisor")
    opened_by_click(lab._tabs, "Advisor")
    assert lab._tabs.open_name == "Advisor"
