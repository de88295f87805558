"""Theory beside the run: predicted before it, under it, and compared with it afterwards."""

from __future__ import annotations

import threading
import time
import types

import pytest

from parallab.models.spec import Model
from parallab.panels import picture as picture_module
from parallab.panels import theory
from parallab.panels.parts import Look
from parallab.panels.why import Why, comparison
from parallab.panels.worker import Latest
from parallab.plan import Plan
from tests.panels.reach import LONG, click, find, text
from tests.synthetic import fake_prediction, fake_report

MIB = 2**20


@pytest.fixture
def lab(make, monkeypatch):
    """A lab over made-up runs, with a theory that is made up as well."""
    monkeypatch.setattr(
        picture_module, "prediction", lambda model, plan, kernels: fake_prediction(model, plan)
    )
    return make()


@pytest.fixture
def simulate(monkeypatch):
    """Stands for the simulator: it waits until it may go on."""
    stand_in = types.SimpleNamespace(go=threading.Event(), calls=[])

    def simulated(model, plan, *, ranks=None, progress=None):
        stand_in.calls.append((plan, ranks))
        progress(1, 2, "rank 0")
        assert stand_in.go.wait(LONG)
        progress(2, 2, "rank 1")
        return fake_prediction(model, plan, "simulated")

    monkeypatch.setattr(theory, "simulate", simulated)
    return stand_in


def test_before_a_run_the_choice_is_predicted(lab):
    lab.panel._picture.wait(LONG)
    assert "predicted peak" in text(lab)
    before = lab.panel.picture
    click(lab, "pl-strategy-zero3")
    lab.panel._picture.wait(LONG)
    plan = lab.panel.controls.plan
    predicted = fake_prediction(Model("mini"), plan)
    assert f"<b>{predicted.peak_bytes / MIB:.1f} MiB</b><span>predicted peak" in text(lab)
    assert "sent per step, predicted" in text(lab)
    assert lab.panel.picture != before
    assert lab.report is None


def test_during_and_after_a_run_it_lies_under_what_is_measured(lab):
    report = lab.run(Model("mini"), Plan("ddp", devices=2), 4)
    history = lab.panel._picture.view.history
    assert history.predicted.plan == report.plan
    assert history.report.steps == 4
    assert "predicted peak" not in text(lab)


def test_another_choice_is_predicted_and_the_same_one_shows_its_run_again(lab):
    lab.run(Model("mini"), Plan("ddp", devices=4), 4)
    ran = lab.panel._picture.view
    click(lab, "pl-strategy-zero1")
    lab.panel._picture.wait(LONG)
    assert lab.panel._picture.view.history.report.steps == 0
    click(lab, "pl-strategy-ddp")
    lab.panel._picture.wait(LONG)
    assert lab.panel.controls.plan == Plan("ddp", devices=4)
    assert lab.panel._picture.view is ran


def test_a_choice_during_a_run_does_not_disturb_it(lab):
    lab.panel.runner.gate = threading.Event()
    lab.panel.start()
    lab.panel._picture.begin(Model("mini"), Plan("ddp"), 3)
    view = lab.panel._picture.view
    lab.panel._picture.expect(Model("nano"), Plan("zero3"), 3)
    lab.panel._picture.wait(LONG)
    assert lab.panel._picture.view is view
    lab.panel.runner.gate.set()
    assert lab.panel.wait(LONG) == "done"


# Why it differs.


def test_after_a_run_the_difference_is_shown_by_category(lab):
    assert "After a run:" in text(lab)
    assert find(lab, "pl-simulate").disabled
    report = lab.run(Model("mini"), Plan("ddp", devices=2), 4)
    predicted = fake_prediction(Model("mini"), report.plan)
    rank = max(predicted.ranks, key=lambda r: r.peak.peak_bytes).rank
    workspace = report.ranks[rank].peak.at_peak["workspace"]
    shown = text(lab)
    assert (
        f'<tr class="pl-differs"><td class="pl-text">workspace</td><td>0</td>'
        f'<td>{workspace:,}</td><td>+{workspace:,}</td><td class="pl-text">memory that no tensor'
        in shown
    )
    activations = f"{report.ranks[rank].peak.at_peak['activations']:,}"
    assert (
        f'<tr><td class="pl-text">activations</td><td>{activations}</td><td>{activations}</td>'
        "<td>0</td>" in shown
    )
    assert f"Memory at the peak of rank {rank}, bytes" in shown
    assert "all-reduce on dp, payload" in shown


def test_the_simulation_is_a_third_column_when_it_is_asked_for(lab, simulate):
    simulate.go.set()
    report = lab.run(Model("mini"), Plan("ddp", devices=2), 4)
    click(lab, "pl-simulate")
    lab.panel._why_differs.wait(LONG)
    assert "<th>predicted</th><th>simulated</th><th>measured</th>" in text(lab)
    assert "<details open>" in text(lab)
    assert simulate.calls == [(report.plan, [1])]
    assert find(lab, "pl-simulate").disabled


def test_a_simulation_is_stopped_by_the_same_button(lab, simulate):
    lab.run(Model("mini"), Plan("ddp", devices=2), 4)
    click(lab, "pl-simulate")
    assert find(lab, "pl-simulate").description == "Stop simulating"
    click(lab, "pl-simulate")
    simulate.go.set()
    lab.panel._why_differs.wait(LONG)
    assert "simulated</th>" not in text(lab)
    assert find(lab, "pl-simulate").description == "Simulate too"
    assert not find(lab, "pl-simulate").disabled


def test_a_simulation_that_fails_says_so(lab, monkeypatch):
    def broken(*args, **options):
        raise ZeroDivisionError("no <way>")

    monkeypatch.setattr(theory, "simulate", broken)
    lab.run(Model("mini"), Plan("ddp", devices=2), 4)
    click(lab, "pl-simulate")
    lab.panel._why_differs.wait(LONG)
    assert "ZeroDivisionError: no &lt;way&gt;" in lab.panel._error.value


def test_a_simulation_of_an_older_run_is_forgotten(lab, simulate):
    lab.run(Model("mini"), Plan("ddp", devices=2), 4)
    click(lab, "pl-simulate")
    lab.run(Model("mini"), Plan("zero3", devices=2), 4)
    simulate.go.set()
    lab.panel._why_differs.wait(LONG)
    assert "simulated</th>" not in text(lab)
    assert "all-gather on dp, payload" in text(lab)


def test_agreement_is_said_as_well():
    predicted = fake_prediction(Model("mini"), Plan("ddp", devices=2))
    words = comparison([predicted, predicted])
    assert "(+0.0 %)" in words
    assert "pl-differs" not in words


def test_without_a_prediction_there_is_nothing_to_compare():
    why = Why(Look(), lambda error: None)
    why.show(None, fake_report("ddp", devices=2, steps=2))
    assert "After a run" in why._text.value


# Threads.


def test_only_the_latest_job_is_done():
    done, first, go = [], threading.Event(), threading.Event()
    latest = Latest(done.append, max_fps=1000)

    def slow():
        first.set()
        assert go.wait(LONG)
        done.append(0)

    latest(slow)
    assert first.wait(LONG)
    for i in (1, 2, 3):
        latest(lambda i=i: done.append(i))
    go.set()
    latest.wait(LONG)
    assert done == [0, 3]


def test_jobs_come_no_faster_than_the_frame_rate():
    times = []
    latest = Latest(times.append, max_fps=20)
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        latest(lambda: times.append(time.monotonic()))
    latest.wait(LONG)
    assert 2 <= len(times) <= 12


def test_what_a_job_raises_is_told_and_the_next_one_done():
    told = []
    latest = Latest(told.append, max_fps=1000)
    latest(lambda: 1 / 0)
    latest.wait(LONG)
    latest(lambda: told.append("next"))
    latest.wait(LONG)
    assert isinstance(told[0], ZeroDivisionError)
    assert told[1] == "next"


def test_a_closed_one_begins_nothing():
    done = []
    latest = Latest(done.append)
    latest.close()
    latest(lambda: done.append(1))
    latest.wait(LONG)
    assert done == []


def test_one_simulation_at_a_time(simulate):
    ended = threading.Event()
    reports, failures = [], []
    one = theory.Simulation(lambda *_: None, failures.append, ended.set)
    assert one.start(Model("nano"), Plan("ddp"), reports.append)
    assert not one.start(Model("nano"), Plan("ddp"), reports.append)
    simulate.go.set()
    one.wait(LONG)
    assert ended.is_set()
    assert failures == []
    assert [report.source for report in reports] == ["simulated"]
