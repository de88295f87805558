"""The run panel: choices, a run, and what ends it."""

from __future__ import annotations

import io
import signal
import threading

import numpy as np
import pytest
from PIL import Image

from parallab.catalog import STRATEGIES
from parallab.errors import ClusterError, PlanError, RankError
from parallab.models.spec import Model
from parallab.panels.parts import all_widgets
from parallab.plan import Plan
from tests.panels.reach import LONG, click, find, text
from tests.synthetic import FakeRunner


def test_every_strategy_is_offered_and_explained(make):
    lab = make()
    for name, row in STRATEGIES.items():
        css = f"pl-strategy-{name}".replace("+", "-")
        assert find(lab, css).description == row.title
        click(lab, css)
        assert row.source in text(lab)
        assert lab.panel.controls.plan.strategy == name


def test_a_plan_that_cannot_work_greys_out_run_and_says_why(make):
    lab = make()
    lab.panel.controls._numbers["batch"].value = 7
    assert find(lab, "pl-run").disabled
    assert "A batch of 7 sequences" in find(lab, "pl-run").tooltip
    assert "A batch of 7 sequences" in text(lab)
    lab.panel.controls._numbers["batch"].value = 8
    assert not find(lab, "pl-run").disabled
    click(lab, "pl-devices-3")
    assert "Adjusted to your choice: Batch 8 → 9." in text(lab)


def test_a_run_by_click(make):
    lab = make()
    lab.panel.controls._numbers["steps"].value = 7
    click(lab, "pl-strategy-zero3")
    before = lab.panel.picture
    click(lab, "pl-run")
    assert find(lab, "pl-run").disabled
    assert not find(lab, "pl-stop").disabled
    assert find(lab, "pl-strategy-ddp").disabled
    assert lab.panel.wait(LONG) == "done"
    assert lab.report.steps == 7
    assert lab.report.plan.strategy == "zero3"
    assert not find(lab, "pl-run").disabled
    assert find(lab, "pl-stop").disabled
    assert not find(lab, "pl-strategy-ddp").disabled
    assert "step 6: loss" in text(lab)
    assert lab.panel._bar.value == 7
    pictures = [np.asarray(Image.open(io.BytesIO(p))) for p in (before, lab.panel.picture)]
    assert pictures[0].shape == pictures[1].shape
    assert (pictures[0] != pictures[1]).mean() > 0.02


def test_tiles_are_the_reports_figures(make):
    lab = make()
    report = lab.run(Model("mini"), Plan("zero3", devices=4), 8)
    shown = text(lab)
    assert f"<b>{report.peak_bytes / 2**20:.1f} MiB</b>" in shown
    assert f"<b>{report.wire_bytes / 2**20:.1f} MiB</b>" in shown
    assert f"<b>{1000 * report.step_seconds:.0f} ms</b>" in shown
    assert f"<b>{report.tokens_per_second:,.0f}</b>" in shown
    lab.panel._picture.quantity.value = "payload_bytes"
    lab.panel._picture.wait(LONG)
    assert f"<b>{report.payload_bytes / 2**20:.1f} MiB</b>" in text(lab)


def test_a_pipelines_log_says_which_stage_is_where(make):
    lab = make()
    lab.run(Model("mini"), Plan("3d"), 2)
    shown = text(lab)
    assert "stage 0 on ranks 0-3: embedding, blocks 0-3, 2.4 M parameters over tp=2" in shown
    assert "the head costs the last memory and time (0.066 M parameters)." in shown
    # Everything is as it was shown, and ready for the next run.
    assert find(lab, "pl-tp-2").disabled is False
    assert "pl-chosen" in find(lab, "pl-zero-1")._dom_classes
    assert lab.panel.controls.plan == Plan("3d")


def test_the_bubble_is_shown_beside_the_formulas(make):
    lab = make()
    lab.run(Model("mini"), Plan("ddp"), 3)
    assert "idle" not in lab.panel._picture._tiles.value
    report = lab.run(Model("mini"), Plan("pp", 4, micro_batches=12, schedule="gpipe"), 3)
    measured = report.bubble
    # 3 of 15 slots.
    assert f"<b>{100 * measured.idle_of_total:.0f} %</b><span>idle (formula 20 %)" in text(lab)
    ideal = f"idle/ideal {100 * measured.idle_of_ideal:.0f} % (25 %)"
    assert ideal in text(lab)


def test_a_second_click_is_ignored_while_a_run_is_under_way(make):
    runner = FakeRunner()
    runner.gate = threading.Event()
    lab = make(runner)
    assert lab.panel.start()
    assert not lab.panel.start()
    with pytest.raises(ClusterError, match="still under way"):
        lab.run(Model("nano"), Plan("ddp"), 2)
    runner.gate.set()
    assert lab.panel.wait(LONG) == "done"
    assert lab.panel.start()
    assert lab.panel.wait(LONG) == "done"


def test_stop_while_running(make):
    lab = make(FakeRunner(polls_per_step=20))
    lab.panel.controls._numbers["steps"].value = 5000
    click(lab, "pl-run")
    click(lab, "pl-stop")
    assert lab.panel.wait(LONG) == "stopped"
    assert lab.report.steps < 5000
    assert "Stopped after" in text(lab)


def test_stop_while_starting(make):
    runner = FakeRunner()
    runner.gate = threading.Event()
    lab = make(runner)
    click(lab, "pl-run")
    click(lab, "pl-stop")
    runner.gate.set()
    assert lab.panel.wait(LONG) == "stopped"
    assert lab.report.steps == 0


def test_a_failing_rank_is_shown_in_words_and_the_panel_lives_on(make):
    runner = FakeRunner(fail_at=2)
    lab = make(runner)
    click(lab, "pl-run")
    assert lab.panel.wait(LONG) == "failed"
    assert "ran out of memory &lt;8 GiB&gt;" in text(lab)
    assert "<pre>Traceback: fake</pre>" in text(lab)
    assert lab.panel._picture.view.history.report.steps == 2
    with pytest.raises(RankError, match="Rank 2 failed"):
        lab.run(Model("nano"), Plan("ddp"), 5)
    runner.run_options = {}
    click(lab, "pl-run")
    assert lab.panel.wait(LONG) == "done"
    assert "ran out of memory" not in lab.panel._error.value


def test_what_nobody_expected_is_shown_too(make):
    runner = FakeRunner()
    runner.submit = lambda *_: 1 / 0
    lab = make(runner)
    click(lab, "pl-run")
    assert lab.panel.wait(LONG) == "failed"
    assert "ZeroDivisionError" in lab.panel._error.value
    assert "did not expect" in lab.panel._error.value


def test_a_run_ends_though_its_last_picture_cannot_be_drawn(make):
    lab = make()
    lab.panel._picture.redraw = lambda: 1 / 0
    click(lab, "pl-run")
    assert lab.panel.wait(LONG) == "done"
    assert "ZeroDivisionError" in lab.panel._error.value


def test_lab_run_refuses_before_it_starts(make):
    lab = make()
    with pytest.raises(PlanError, match="longer than"):
        lab.run(Model("nano"), Plan("ddp", seq=5000), 2)
    with pytest.raises(PlanError, match="steps=0"):
        lab.run(Model("nano"), Plan("ddp"), 0)
    assert lab.panel.state == "idle"


def test_interrupting_lab_run_stops_it(make):
    lab = make(FakeRunner(polls_per_step=5))
    before = lab.run(Model("nano"), Plan("ddp"), 1)

    def press(change):
        if change["new"] == 2:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    lab.panel._bar.observe(press, "value")
    report = lab.run(Model("nano"), Plan("zero3"), 5000)
    assert report is not before
    assert report.plan.strategy == "zero3"
    assert 2 <= report.steps < 5000
    assert lab.panel.state == "stopped"
    assert lab.run(Model("nano"), Plan("ddp"), 1).steps == 1


def test_closing_in_the_middle_of_a_run(make):
    runner = FakeRunner(polls_per_step=20)
    lab = make(runner)
    lab.panel.controls._numbers["steps"].value = 5000
    click(lab, "pl-run")
    lab.close()
    assert lab.panel.wait(LONG) == "stopped"
    assert not lab.panel.start()
    lab.close()


def test_closing_leaves_no_widget_behind(make):
    from ipywidgets.widgets import widget as ipywidgets_widget

    before = set(ipywidgets_widget._instances)
    make().close()
    assert set(ipywidgets_widget._instances) == before


def test_release(make):
    runner = FakeRunner()
    lab = make(runner)
    lab.panel._release()
    assert runner.released == 1
    assert "Released." in text(lab)


def test_what_is_chosen_can_be_taken_home(make):
    lab = make()
    click(lab, "pl-strategy-zero2")
    click(lab, "pl-home")
    assert "torchrun --standalone --nproc-per-node=4 -m parallab run" in text(lab)
    assert "&quot;strategy&quot;: &quot;zero2&quot;" in text(lab)
    click(lab, "pl-home")
    assert "torchrun" not in text(lab)
    click(lab, "pl-home")
    click(lab, "pl-strategy-ddp")  # another plan: what was shown is not its
    assert "torchrun" not in text(lab)


def test_everything_is_sent_again_after_the_end(make):
    lab = make()
    lab.run(Model("nano"), Plan("ddp"), 2)
    sent = []
    for widget in all_widgets(lab.panel.widget):
        widget.send_state = lambda widget=widget: sent.append(widget)
    lab.panel._resend()
    comms = [w for w in all_widgets(lab.panel.widget) if w.comm is not None]
    assert len(sent) == len(comms)
