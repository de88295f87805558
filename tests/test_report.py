"""Report: JSON round trip, damaged files, and the figures that people ask first."""

import json
import math
import re
from types import SimpleNamespace

import pandas as pd
import pytest

import parallab as pl
from parallab.report import (
    CATEGORIES,
    SCHEMA,
    Communication,
    Memory,
    PhaseMemory,
    Rank,
    Span,
    Step,
    sent,
    total_communication,
)
from tests.synthetic import fake_report


def step(index, *, rank=0, loss=2.0, seconds=0.1, traced=False, peak=100):
    """A step of 100 bytes; rank 1 sends a gather that rank 0 does not."""
    rows = [
        Communication("all_reduce", "dp", "backward", 2, 1000, 1000, 0.01),
        Communication("all_reduce", "dp", "optimizer", 1, 8, 8),
        Communication("recv", "pp", "forward", 1, 64, 0),
    ]
    if rank:
        rows.append(Communication("gather", "dp", "forward", 1, 500, 250))
    memory = Memory(peak)
    if traced:
        memory = Memory(
            peak,
            at_peak={"parameters": peak - 20, "workspace": 20},
            states={"parameters": peak - 20, "gradients": 0, "optimizer": 0, "buffers": 0},
            phases=[PhaseMemory("forward", peak, {"parameters": peak - 20, "workspace": 20})],
            series={"seconds": [0.0, 0.5], "parameters": [peak - 20, peak - 20]},
        )
    spans = [Span("forward", 0, 0, 0.0, 0.04), Span("backward", 0, 0, 0.04, 0.09)]
    return Step(index, loss, seconds, traced, memory, rows, spans)


@pytest.fixture
def report():
    """Two ranks, four steps, of which 0 and 1 are traced; rank 1 is slower and holds more."""
    ranks = [
        Rank(r, {"dp": r, "pp": 0, "tp": 0}, "cpu", "here", [
            step(0, rank=r, loss=5.0 + r, seconds=9.0, traced=True, peak=100 + r),
            step(1, rank=r, loss=4.0 + r, seconds=0.5, traced=True, peak=200 + r),
            step(2, rank=r, loss=3.0 + r, seconds=0.2 + 0.1 * r),
            step(3, rank=r, loss=2.0 + r, seconds=0.4 + 0.1 * r, peak=999),
        ])
        for r in range(2)
    ]  # fmt: skip
    plan = pl.Plan("ddp", 2, batch=4, seq=64)
    return pl.Report("measured", pl.Model("nano"), plan, {"torch": "2.13", "hosts": ["a"]}, ranks)


def test_json_round_trip(report, tmp_path):
    path = report.save(tmp_path / "r.json")
    assert pl.Report.load(path) == report
    assert pl.Report.load(str(path)).to_dict() == report.to_dict()


def test_json_has_the_names_that_scripts_rely_on(report):
    data = json.loads(json.dumps(report.to_dict()))
    assert list(data) == ["schema", "source", "model", "plan", "environment", "ranks"]
    assert data["schema"] == "parallab.report/1" == SCHEMA
    assert data["model"]["parameters"] == 125_248
    assert data["plan"]["zero"] == 0
    rank = data["ranks"][1]
    assert list(rank) == ["rank", "coords", "device", "host", "steps"]
    first = rank["steps"][0]
    assert list(first) == [
        "step", "loss", "seconds", "traced", "memory", "communication", "spans", "begin",
        "traffic",
    ]  # fmt: skip
    assert list(first["memory"]) == [
        "peak_bytes", "at_peak", "states", "phases", "series", "marks",
    ]  # fmt: skip
    assert first["memory"]["phases"][0] == {
        "phase": "forward", "peak_bytes": 101, "by_category": {"parameters": 81, "workspace": 20},
    }  # fmt: skip
    assert first["communication"][0] == {
        "op": "all_reduce", "axis": "dp", "phase": "backward", "count": 2, "payload_bytes": 1000,
        "wire_bytes": 1000, "seconds": 0.01,
    }  # fmt: skip
    assert first["spans"][0] == {
        "kind": "forward", "stage": 0, "micro_batch": 0, "start": 0.0, "end": 0.04,
    }  # fmt: skip


def test_the_first_figures(report):
    assert report.steps == 4
    assert report.losses == [5.5, 4.5, 3.5, 2.5]
    assert report.peak_bytes == 201  # traced steps come first
    assert report.step_seconds == pytest.approx(0.4)  # median of 0.3 and 0.5: steps 2 and 3
    assert report.tokens_per_second == pytest.approx(640)  # 4 × 64 tokens in 0.4 s
    assert report.warm_step == 3


def test_communication_of_one_rank_and_of_the_busiest(report):
    all_reduce = {"count": 3, "payload_bytes": 1008, "wire_bytes": 1008}
    recv = {"count": 1, "payload_bytes": 64, "wire_bytes": 0}
    gather = {"count": 1, "payload_bytes": 500, "wire_bytes": 250}
    of_0 = {("all_reduce", "dp"): all_reduce, ("recv", "pp"): recv}
    assert report.communication(0) == of_0
    assert report.communication() == {**of_0, ("gather", "dp"): gather}
    assert report.wire_bytes == 1258


def test_a_receive_is_its_senders(report):
    assert sent(report.ranks[0].steps[0], "payload_bytes") == 1008
    assert sent(report.ranks[1].steps[0], "payload_bytes") == 1508
    assert report.payload_bytes == 1508


def test_totals_add_up_over_phases():
    rows = [Communication("all_gather", "dp", p, 2, 10, 5) for p in ("forward", "backward")]
    assert total_communication(rows) == {
        ("all_gather", "dp"): {"count": 4, "payload_bytes": 20, "wire_bytes": 10}
    }


def test_ranks_without_a_loss_do_not_count(report):
    for s in report.ranks[1].steps:
        s.loss = None
    assert report.losses == [5.0, 4.0, 3.0, 2.0]
    report.ranks[0].steps[0].loss = None
    assert math.isnan(report.losses[0])


def test_only_steps_that_every_rank_finished_count(report):
    del report.ranks[1].steps[2:]
    assert report.steps == 2
    assert report.warm_step == 1
    assert report.losses == [5.5, 4.5]
    assert report.step_seconds == pytest.approx(4.75)  # all traced, so any step counts


def test_a_report_without_steps():
    empty = pl.Report("predicted", pl.Model("nano"), pl.Plan("ddp", 2))
    assert (empty.steps, empty.losses, empty.peak_bytes, empty.warm_step) == (0, [], 0, None)
    assert empty.step_seconds is None
    assert empty.tokens_per_second is None
    assert empty.communication() == {}
    assert empty.payload_bytes == empty.wire_bytes == 0
    assert pl.Report.from_dict(empty.to_dict()) == empty


def test_frame(report):
    frame = report.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert frame.shape[0] == 8
    assert list(frame["rank"]) == [0] * 4 + [1] * 4
    assert frame["parameters_bytes"].tolist()[:2] == [80, 180]
    assert frame["wire_bytes"].tolist()[4:] == [1258] * 4
    assert {f"{c}_bytes" for c in CATEGORIES} <= set(frame.columns)


def test_repr(report):
    assert repr(report).startswith("<measured Report: nano, ddp on 2 (dp=2 pp=1 tp=1), batch 4")
    assert repr(report).endswith("4 steps>")


@pytest.mark.parametrize("data", [None, [], "text", 3, {}, {"ranks": []}])
def test_no_report(data):
    with pytest.raises(pl.ReportError, match="not a parallab Report: it names no schema"):
        pl.Report.from_dict(data)


@pytest.mark.parametrize("schema", ["parallab.report/2", "parallab.report/0", 1, None, ["x"]])
def test_another_schema(report, schema):
    data = {**report.to_dict(), "schema": schema}
    message = f"has the schema {schema!r}; this version reads parallab.report/1."
    with pytest.raises(pl.ReportError, match=re.escape(message)):
        pl.Report.from_dict(data)


RANK = ("ranks", 0)
STEP = (*RANK, "steps", 0)


def parent(data, path):
    for key in path[:-1]:
        data = data[key]
    return data


@pytest.mark.parametrize(
    "path",
    [
        ("source",), ("model",), ("plan",), ("ranks",), (*RANK, "rank"), (*RANK, "coords"),
        (*RANK, "steps"), (*STEP, "step"), (*STEP, "memory"), (*STEP, "memory", "peak_bytes"),
        (*STEP, "memory", "phases", 0, "phase"), (*STEP, "communication", 0, "op"),
        (*STEP, "spans", 0, "end"),
    ],
)  # fmt: skip
def test_a_missing_field_is_damage(report, path):
    data = report.to_dict()
    del parent(data, path)[path[-1]]
    with pytest.raises(pl.ReportError, match="This Report is damaged"):
        pl.Report.from_dict(data)


@pytest.mark.parametrize("nonsense", ["nonsense", 3, None, [1]])
@pytest.mark.parametrize(
    "path",
    [
        ("source",), ("model",), ("plan",), ("environment",), ("ranks",), RANK, (*RANK, "steps"),
        STEP, (*STEP, "memory"), (*STEP, "communication"), (*STEP, "spans"), (*STEP, "spans", 0),
        ("plan", "strategy"), ("model", "kv_heads"),
    ],
)  # fmt: skip
def test_nonsense_in_place_of_a_field_is_damage(report, path, nonsense):
    if path == ("model", "kv_heads"):
        nonsense = nonsense or "a size of None is one that was not given"
    data = report.to_dict()
    parent(data, path)[path[-1]] = nonsense
    with pytest.raises(pl.ReportError, match="This Report is damaged"):
        pl.Report.from_dict(data)


def test_less_than_nothing_is_damage(report):
    data = report.to_dict()
    data["ranks"][0]["steps"][0]["memory"]["peak_bytes"] = -1
    with pytest.raises(pl.ReportError, match="is not bytes by category"):
        pl.Report.from_dict(data)


def test_an_unknown_field_is_damage(report):
    data = report.to_dict()
    data["ranks"][0]["steps"][0]["surprise"] = 1
    with pytest.raises(pl.ReportError, match="surprise"):
        pl.Report.from_dict(data)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe\x00", b"NaN...", b'{"schema": "parallab.report/1"']
)
def test_a_damaged_file(tmp_path, content):
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(pl.ReportError, match=r"r\.json cannot be read as a Report"):
        pl.Report.load(path)


def test_a_cut_off_file(report, tmp_path):
    path = report.save(tmp_path / "r.json")
    path.write_text(path.read_text()[:-20])
    with pytest.raises(pl.ReportError, match="cannot be read as a Report"):
        pl.Report.load(path)


def test_no_such_file(tmp_path):
    with pytest.raises(pl.ReportError, match=r"none\.json cannot be read as a Report"):
        pl.Report.load(tmp_path / "none.json")
    with pytest.raises(pl.ReportError, match="cannot be read as a Report"):
        pl.Report.load(tmp_path)


def test_plot_is_the_plots_figure(report, monkeypatch):
    drawn = SimpleNamespace(plot_report=lambda r: ("figure", r))
    monkeypatch.setitem(__import__("sys").modules, "parallab.plots", drawn)
    assert report.plot() == ("figure", report)


def test_a_loss_that_is_no_number_is_null_in_json(tmp_path):
    report = fake_report(steps=2)
    report.ranks[0].steps[1].loss = math.nan
    loaded = pl.Report.load(report.save(tmp_path / "r.json"))
    assert loaded.ranks[0].steps[1].loss is None
    assert "NaN" not in (tmp_path / "r.json").read_text()


@pytest.mark.parametrize(
    "damage",
    [
        lambda step: step.update(loss="x"),
        lambda step: step.update(seconds=True),
        lambda step: step["memory"].update(peak_bytes="x"),
        lambda step: step["memory"]["at_peak"].update(nonsense=1),
    ],
)
def test_values_of_another_kind_are_damage(damage):
    data = fake_report(steps=1).to_dict()
    damage(data["ranks"][0]["steps"][0])
    with pytest.raises(pl.ReportError, match="damaged"):
        pl.Report.from_dict(data)


def test_a_file_nested_too_deeply_is_no_report(tmp_path):
    (tmp_path / "deep.json").write_text("[" * 200_000 + "]" * 200_000)
    with pytest.raises(pl.ReportError, match="cannot be read"):
        pl.Report.load(tmp_path / "deep.json")
