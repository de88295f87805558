"""Replays, and what a notebook keeps without a kernel."""

from __future__ import annotations

from parallab.models.spec import Model
from parallab.plan import Plan
from tests.panels.reach import LONG, click, find, text
from tests.synthetic import fake_report


def test_replay_shows_the_report_and_runs_nothing(make):
    report = fake_report("zero1", devices=2, steps=4)
    lab = make(replay=report)
    assert find(lab, "pl-run").description == "Replay"
    assert find(lab, "pl-strategy-ddp").disabled
    assert lab.panel.controls.plan == report.plan
    click(lab, "pl-run")
    assert lab.panel.wait(LONG) == "done"
    assert lab.report is report
    assert "Replayed 4 measured steps." in text(lab)


def test_replaying_a_composition_shows_its_degrees(make):
    report = fake_report("3d", devices=8, steps=3)
    lab = make(replay=report)
    assert lab.panel.controls.plan == report.plan
    for css in ("pl-dp-2", "pl-pp-2", "pl-tp-2", "pl-zero-1", "pl-schedule-1f1b"):
        assert "pl-chosen" in find(lab, css)._dom_classes, css
        assert find(lab, css).disabled, css
    click(lab, "pl-run")
    assert lab.panel.wait(LONG) == "done"


def test_fallbacks_for_a_notebook_without_a_kernel(make):
    lab = make()
    bundle = lab._repr_mimebundle_()
    assert "nothing has run yet" in bundle["text/plain"]
    assert bundle["text/html"].count("data:image/png;base64,") == 1
    # What JupyterLab takes out of a notebook that is not trusted.
    assert not any(tag in bundle["text/html"] for tag in ("<svg", "<style", "<script"))
    assert bundle["image/png"].startswith("iVBORw0KGgo")
    assert "application/vnd.jupyter.widget-view+json" in bundle
    lab.run(Model("nano"), Plan("zero3", devices=2), 3)
    assert "zero3 on 2" in repr(lab)
