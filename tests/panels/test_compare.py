"""Pins, the Compare panel and replays, without a browser: a click is a call."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from PIL import Image

from parallab.compare import collection
from parallab.errors import ClusterError, ReportError
from parallab.models.spec import Model
from parallab.panels import take as take_module
from parallab.panels.compare import Compare
from parallab.panels.parts import all_widgets
from parallab.panels.pins import MOST, Pins
from parallab.plan import Plan
from tests.panels.reach import LONG, click, find, text
from tests.recorded import recorded
from tests.synthetic import fake_prediction, fake_report

DDP, ZERO = recorded(), recorded(plan=Plan("zero1", 2, batch=4, seq=64))


@pytest.fixture
def panel():
    played = []
    panel = Compare(Pins(), lambda report, speed: played.append((report, speed)))
    panel.played = played
    yield panel
    panel.wait(LONG)
    panel.close()


@pytest.fixture
def lab(make):
    return make()


def pin(panel, *reports):
    names = [panel.pins.add(report) for report in reports]
    panel.wait(LONG)
    return names


def every(panel, css):
    return [w for w in all_widgets(panel.widget) if css in getattr(w, "_dom_classes", ())]


def uploaded(panel, **files):
    upload = find(panel, "pl-upload")
    upload.value = tuple(
        dict(name=f"{name}.json", type="", size=len(data), content=memoryview(data),
             last_modified=datetime.now(UTC))
        for name, data in files.items()
    )  # fmt: skip
    panel.wait(LONG)


# Pins.


def test_a_report_is_pinned_once_under_a_name_of_its_own():
    pins, told = Pins(), []
    pins.watch(lambda: told.append(pins.names))
    assert pins.add(DDP) == "ddp ×2, nano"
    assert pins.add(DDP, "again") == "ddp ×2, nano"
    assert pins.add(recorded(6)) == "ddp ×2, nano (2)"
    assert pins.rename(DDP, "ddp ×2, nano (2)") == "ddp ×2, nano (2) (2)"
    assert pins.rename(DDP, " ") == "ddp ×2, nano (2) (2)"
    pins.remove(DDP)
    assert pins.names == ["ddp ×2, nano (2)"]
    assert len(told) == 5


def test_what_cannot_be_pinned_says_why():
    pins = Pins()
    with pytest.raises(ReportError, match="no finished step"):
        pins.add(recorded(0))
    for steps in range(1, MOST + 1):
        pins.add(recorded(steps))
    with pytest.raises(ReportError, match="16 runs are pinned already"):
        pins.add(recorded(MOST + 1))


# The panel.


def test_an_empty_panel_says_what_to_do(panel):
    panel.wait(LONG)
    assert "Nothing is pinned yet." in text(panel)
    assert panel.pair is None
    assert panel.picture == b""


def test_one_alone_is_shown(panel):
    pin(panel, DDP)
    assert "Pin a second run" in text(panel)
    assert Image.open(io.BytesIO(panel.picture)).width > 1000


def test_two_are_compared_in_words(panel):
    pin(panel, DDP, ZERO)
    assert panel.pair == (DDP, ZERO)
    assert "Strategy ddp → zero1, ZeRO stage 0 → 1." in text(panel)
    assert "All figures of A and B" in text(panel)
    assert [b.tooltip for b in every(panel, "pl-chosen")][:2] == [
        "Compare this run as A", "Compare this run as B"
    ]  # fmt: skip


def test_the_last_is_b_until_somebody_chooses(panel):
    third = fake_prediction(DDP.model, DDP.plan)
    pin(panel, DDP, ZERO, third)
    assert panel.pair == (DDP, third)
    every(panel, "pl-pin-b")[1].click()
    panel.wait(LONG)
    assert panel.pair == (DDP, ZERO)
    every(panel, "pl-pin-a")[1].click()
    panel.wait(LONG)
    assert panel.pair[0] is ZERO
    assert "Strategy zero1 → ddp" in text(panel)


def test_two_change_places(panel):
    pin(panel, DDP, ZERO)
    every(panel, "pl-pin-a")[0].click()
    every(panel, "pl-pin-b")[1].click()
    every(panel, "pl-pin-a")[1].click()
    panel.wait(LONG)
    assert panel.pair == (ZERO, DDP)


def test_names_can_be_changed_and_runs_forgotten(panel):
    pin(panel, DDP, ZERO)
    first, second = every(panel, "pl-pin-name")
    second.value = first.value
    panel.wait(LONG)
    assert panel.pins.names == ["ddp ×2, nano", "ddp ×2, nano (2)"]
    assert second.value == "ddp ×2, nano (2)"
    every(panel, "pl-forget")[0].click()
    panel.wait(LONG)
    assert panel.pins.names == ["ddp ×2, nano (2)"]
    assert len(every(panel, "pl-pin-row")) == 1
    assert panel.pair is None
    assert panel.pins.rename(DDP, "too late") == "too late"  # typed as it was removed
    assert panel.pins.names == ["ddp ×2, nano (2)"]


def test_names_are_no_markup(panel):
    panel.pins.add(DDP, "<script>alert(1)</script>")
    pin(panel, ZERO)
    assert "<script>" not in text(panel)
    assert "&lt;script&gt;" in text(panel)


def test_saved_reports_are_opened_and_the_rest_refused(panel):
    uploaded(
        panel, one=collection.to_json([collection.Named("", DDP)]).encode(), empty=b"",
        other=b'{"schema": "parallab.report/2"}',
    )  # fmt: skip
    assert panel.pins.names == ["one"]
    assert find(panel, "pl-upload").value == ()
    words = text(panel)
    assert "Opened 1 Report." in words
    assert "empty.json is empty." in words
    assert "has the schema &#x27;parallab.report/2&#x27;" in words
    uploaded(panel, again=collection.to_json([collection.Named("", DDP)]).encode())
    assert panel.pins.names == ["one"]
    assert "Pinned already: one." in text(panel)
    assert "Opened" not in text(panel)


def test_a_long_name_is_cut(panel):
    assert panel.pins.add(DDP, "a" * 200) == "a" * 47 + "…"
    assert panel.pins.rename(DDP, f" {'b' * 48} ") == "b" * 48


def test_a_folder_is_opened(panel, tmp_path):
    DDP.save(tmp_path / "a.json")
    ZERO.save(tmp_path / "b.json")
    find(panel, "pl-path").value = str(tmp_path)
    click(panel, "pl-open-path")
    panel.wait(LONG)
    assert panel.pins.names == ["a", "b"]
    panel.open(str(tmp_path / "c.json"))
    panel.wait(LONG)
    assert "cannot be read: No such file or directory." in text(panel)


@pytest.mark.parametrize("kind", ["png", "csv", "json", "html"])
def test_a_file_is_a_link_and_can_be_saved(panel, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pin(panel, DDP)
    click(panel, f"pl-take-{kind}")
    panel.wait(LONG)
    assert f'download="parallab-comparison.{kind}" href="data:' in text(panel)
    click(panel, "pl-save")
    panel.wait(LONG)
    assert "Saved as" in text(panel)
    click(panel, f"pl-take-{kind}")
    panel.wait(LONG)
    click(panel, "pl-save")
    panel.wait(LONG)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"parallab-comparison-2.{kind}", f"parallab-comparison.{kind}"]
    pin(panel, ZERO)
    assert "href=" not in text(panel)


def test_what_is_too_large_for_a_link_is_saved_only(panel, monkeypatch):
    monkeypatch.setattr(take_module, "LINK_BYTES", 100)
    pin(panel, DDP)
    click(panel, "pl-take-csv")
    panel.wait(LONG)
    assert "too large for a link" in text(panel)
    assert "pl-hidden" not in find(panel, "pl-save")._dom_classes


def test_only_what_was_measured_can_be_replayed(panel):
    pin(panel, DDP, fake_prediction(DDP.model, DDP.plan))
    measured, predicted = every(panel, "pl-replay")
    assert predicted.disabled
    assert "predicted: only a run that was measured" in predicted.tooltip
    click(panel, "pl-speed-4")
    measured.click()
    panel.wait(LONG)
    assert panel.played == [(DDP, 4)]


# In the lab.


def test_a_run_is_pinned_by_click(lab):
    assert find(lab, "pl-pin").disabled
    report = lab.run(Model("nano"), Plan("ddp", devices=2), 3)
    lab.panel._pin.widget.click()
    assert lab.pins.names == ["ddp ×2, nano"]
    assert lab.pins.named[0].report is report
    assert "Pinned to Compare: ddp ×2, nano." in text(lab)
    assert find(lab, "pl-tab-compare").description == "Compare (1)"
    lab.panel._why_differs._pin.widget.click()
    assert lab.pins.names == ["ddp ×2, nano", "ddp ×2, nano, predicted"]


def test_theory_is_pinned_by_click(lab):
    lab.calculator.wait(LONG)
    lab.calculator._pin.widget.click()
    assert lab.pins.names == ["zero3 ×8, llama-3.1-8b, predicted"]
    assert lab.pin(lab.calculator.report) == lab.pins.names[0]
    lab.compare.wait(LONG)
    assert lab.compare.picture


def test_a_saved_run_is_replayed_without_engines(lab):
    saved = fake_report("zero3", steps=3)
    assert lab.replay(saved, speed=100) is saved
    assert lab.panel.state == "done"
    assert "Replay of a saved run, measured earlier on cpu. Nothing runs now." in text(lab)
    assert "Starting" not in text(lab)
    assert lab.panel.controls.plan == saved.plan
    # Another choice is no replay.
    click(lab, "pl-strategy-ddp")
    assert "Replay of a saved run, measured" not in text(lab)


def test_a_replay_may_be_of_more_devices_than_there_are(lab):
    before = lab.panel.controls.plan
    saved = fake_report("ddp", 16, steps=2)
    assert lab.replay(saved, speed=100).plan.devices == 16
    assert lab.panel.controls.plan == before


def test_a_replay_is_of_a_measured_run_and_not_beside_another(lab):
    saved = fake_report("ddp", steps=2)
    with pytest.raises(ReportError, match="This Report is predicted"):
        lab.replay(replace(saved, source="predicted"))
    lab.panel.start(Model("nano"), Plan("ddp", 2), 100_000)
    with pytest.raises(ClusterError, match="A run is under way"):
        lab.replay(saved)
    lab.compare._play = lab._play
    lab.compare.play(saved)
    lab.compare.wait(LONG)
    assert "A run is under way in the run panel" in text(lab.compare)
    lab.panel.stop()


def test_closing_leaves_no_widget():
    from ipywidgets.widgets import widget as ipywidgets_widget

    before = set(ipywidgets_widget._instances)
    panel = Compare(Pins(), lambda report, speed: None)
    pin(panel, DDP, ZERO)
    panel.pins.remove(DDP)
    panel.wait(LONG)
    panel.close()
    assert set(ipywidgets_widget._instances) == before
