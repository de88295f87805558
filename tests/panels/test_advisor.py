"""The advisor without a browser: a made-up answer, and what can be done with it."""

from __future__ import annotations

import html
import sys
import threading
import types

import pytest

from parallab.advise.advice import Advice, Option, Rejection, Rule
from parallab.errors import HardwareError
from parallab.hardware import Hardware
from parallab.models.spec import Model
from parallab.panels.advisor import Advisor, seconds_in_words
from parallab.panels.engines import Playback
from parallab.plan import Plan
from parallab.predict.time import step_time
from tests.panels.reach import LONG, find, text
from tests.synthetic import FakeRunner, fake_report

GIB = 2**30
SMALL = Plan("zero3", 4)
LARGE = Plan("3d", 16, dp=4, pp=2, tp=2, precision="bf16", seq=4096, batch=64)


def advice_for(model, options, **asked) -> Advice:
    hardware = Hardware(asked.get("gpu", "h100"), asked.get("nodes", 1))
    return Advice(
        model=model, hardware=hardware, batch=64, seq=4096, precision="bf16", optimizer="adamw",
        rule=Rule("One node, <fits>.", ("ddp",), "A GPU would have to hold 3.0 GiB."),
        options=tuple(
            Option("ZeRO-3", plan, 50 * GIB, 71 * GIB, step_time(model, plan, hardware), "fastest")
            for plan in options
        ),
        slower=(),
        rejections=(Rejection("ZeRO-2", SMALL, 131 * GIB, 80 * GIB),),
        impossible=("tp=16 is more than kv_heads=8.",),
        remedy=None, considered=1234,
    )  # fmt: skip


class Asked:
    """Stands for `parallab.advise`, and for what takes plans elsewhere."""

    def __init__(self) -> None:
        self.questions, self.ran, self.calculated = [], [], []
        self.options = [SMALL, LARGE]
        self.error = None
        self.go = threading.Event()
        self.go.set()

    def advise(self, model, **question):
        self.questions.append((model, question))
        assert self.go.wait(LONG)
        if self.error is not None:
            raise self.error
        return advice_for(model, self.options, **question)

    def why_not(self, model, plan):
        return None if plan.devices <= 8 else f"This plan is for {plan.devices} devices."


@pytest.fixture
def asked(monkeypatch):
    asked = Asked()
    module = types.ModuleType("parallab.advise")
    module.advise = asked.advise
    monkeypatch.setitem(sys.modules, "parallab.advise", module)
    return asked


@pytest.fixture
def advisor(asked):
    def keep(where):
        return lambda model, plan, gpu: where.append((model.name, plan, gpu))

    advisor = Advisor(FakeRunner(8), keep(asked.ran), asked.why_not, keep(asked.calculated))
    yield advisor
    advisor.close()


def ask(advisor: Advisor) -> None:
    find(advisor, "pl-advise").click()
    advisor.wait(LONG)


def test_the_question_is_what_was_chosen(advisor, asked):
    advisor._numbers["nodes"].value = 2
    advisor._numbers["seq"].value = 2048
    advisor._network.value = "slow"
    find(advisor, "pl-advisor-optimizer-sgd").click()
    ask(advisor)
    ((model, question),) = asked.questions
    assert model == Model("llama-3.1-8b")
    assert question == {
        "gpu": "h100", "nodes": 2, "gpus_per_node": 8, "interconnect": "slow", "headroom": 0.1,
        "seq": 2048, "precision": "bf16", "optimizer": "sgd", "limit": 8,
    }  # fmt: skip


def test_this_machine_has_its_own_devices_and_memory(advisor, asked):
    advisor._gpu.value = "here"
    assert advisor._numbers["nodes"].disabled
    ask(advisor)
    question = asked.questions[0][1]
    assert question["devices"] == 8
    assert question["free_bytes"] == GIB
    assert "gpu" not in question


def test_a_replay_is_no_machine(asked):
    runner = Playback(fake_report("ddp", devices=2, steps=2))
    advisor = Advisor(runner, lambda *_: None, asked.why_not, lambda *_: None)
    assert "here" not in [value for _, value in advisor._gpu.options]
    advisor.close()


def test_the_answer_names_peak_time_and_reasons(advisor):
    ask(advisor)
    shown = text(advisor)
    assert "<b>One node, &lt;fits&gt;.</b> A GPU would have to hold 3.0 GiB." in shown
    assert "<span>50.0 GiB of 71.0 GiB</span>" in shown
    assert "<span>fastest</span>" in shown
    assert "peak, predicted" in shown
    assert "step, estimated" in shown
    assert "ZeRO-2 needs 131.0 GiB of 80.0 GiB" in shown
    assert "tp=16 is more than kv_heads=8." in shown
    assert "1,234 plans compared." in shown


def test_run_this_one_is_grey_where_it_cannot_run_here(advisor, asked):
    ask(advisor)
    first, second = (row.children[1] for row in advisor._table.children[1:])
    assert (first.disabled, second.disabled) == (False, True)
    assert second.tooltip == "This plan is for 16 devices."
    first.click()
    advisor.wait(LONG)
    assert asked.ran == [("llama-3.1-8b", SMALL, "h100")]


def test_calculate_takes_any_plan(advisor, asked):
    ask(advisor)
    advisor._table.children[2].children[2].click()
    advisor.wait(LONG)
    assert asked.calculated == [("llama-3.1-8b", LARGE, "h100")]


def test_what_hinders_in_the_last_moment_is_shown(advisor):
    def refuse(*_):
        raise HardwareError("A run is <under way>.")

    advisor._run = refuse
    ask(advisor)
    advisor._table.children[1].children[1].click()
    advisor.wait(LONG)
    assert "A run is &lt;under way&gt;." in advisor._error.value


def test_what_the_times_rest_on_is_said(advisor):
    advisor._gpu.value = "t4"
    ask(advisor)
    assert "T4 16 GB has no bf16 units: its speed is float16's." in html.unescape(text(advisor))


def test_an_answer_to_another_question_does_not_stay(advisor, asked):
    ask(advisor)
    asked.error = HardwareError("There is no such hardware.")
    ask(advisor)
    assert "There is no such hardware." in text(advisor)
    assert "One node" not in text(advisor)
    assert len(advisor._table.children) == 0


def test_fewer_plans_leave_no_old_rows(advisor, asked):
    ask(advisor)
    assert len(advisor._table.children) == 3
    asked.options = [SMALL]
    ask(advisor)
    assert len(advisor._table.children) == 2
    asked.options = []
    ask(advisor)
    assert len(advisor._table.children) == 0


def test_an_error_is_shown_in_words_and_it_can_be_asked_again(advisor, asked):
    asked.error = HardwareError("nodes=9 × gpus_per_node=9 is <too> many.")
    ask(advisor)
    assert "is &lt;too&gt; many." in advisor._error.value
    assert not find(advisor, "pl-advise").disabled
    asked.error = None
    ask(advisor)
    assert advisor._error.value == ""
    assert advisor.advice is not None


def test_while_it_thinks_the_button_is_grey(advisor, asked):
    asked.go.clear()
    find(advisor, "pl-advise").click()
    assert find(advisor, "pl-advise").disabled
    assert "Comparing plans" in text(advisor)
    asked.go.set()
    advisor.wait(LONG)
    assert not find(advisor, "pl-advise").disabled


def test_a_model_from_elsewhere_can_be_chosen(advisor, asked):
    mine = Model("mine", layers=2, hidden=64, heads=4, ffn=128, vocab=256)
    advisor.offer(mine)
    advisor._menu.widget.value = "mine"
    ask(advisor)
    assert asked.questions[0][0] == mine


def test_closing_leaves_no_widget_behind(asked):
    from ipywidgets.widgets import widget as ipywidgets_widget

    before = set(ipywidgets_widget._instances)
    other = Advisor(FakeRunner(8), lambda *_: None, asked.why_not, lambda *_: None)
    ask(other)
    asked.options = []
    ask(other)
    other.close()
    assert set(ipywidgets_widget._instances) == before


def test_durations():
    assert [seconds_in_words(s) for s in (0.0123, 0.5, 12.34)] == ["12.3 ms", "500 ms", "12.3 s"]
