"""Reports as files: several in one, what is refused, the table, the picture and the page."""

import csv
import io
import json
import os
import re
from dataclasses import replace

import pytest

from parallab.cli import main
from parallab.compare import collection, export
from parallab.compare.collection import Named, named, short_name, unique
from parallab.errors import ReportError
from parallab.plan import Plan
from parallab.plots.compare import plot_comparison
from parallab.plots.style import CATEGORY_COLOURS
from parallab.report import Report
from tests.recorded import recorded
from tests.synthetic import fake_prediction, fake_report


@pytest.fixture(scope="module")
def two():
    ddp = recorded()
    hostile = recorded(plan=Plan("zero1", 2, batch=4, seq=64))
    return [Named("ddp <b>", ddp), Named("=cmd()", hostile)]


# Names and files.


@pytest.mark.parametrize(
    ("plan", "name"),
    [
        (Plan("zero3", 4), "zero3 ×4, nano"),
        (Plan("pp", 4, schedule="zbv"), "pp ×4 zbv, nano"),
        (Plan("mp", 2), "mp ×2, nano"),
        (Plan("3d", 8), "3d ×2×2×2 1f1b, nano"),
        (Plan("single"), "single, nano"),
    ],
)
def test_short_names(plan, name):
    report = recorded(plan=plan)
    assert short_name(report) == name
    assert short_name(replace(report, source="predicted")) == f"{name}, predicted"


def test_every_name_is_there_once():
    report = recorded()
    pins = named([("run", report), ("run", report), ("run (2)", report)])
    assert [pin.name for pin in pins] == ["run", "run (2)", "run (2) (2)"]
    assert unique("run", []) == "run"


def test_one_report_is_its_own_file_and_several_are_a_collection(two, tmp_path):
    path = tmp_path / "one.json"
    path.write_text(collection.to_json(two[:1]))
    assert Report.load(path) == two[0].report
    assert collection.load(path) == [Named("one", two[0].report)]
    path.write_text(collection.to_json(two))
    assert collection.load(path) == two


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "r.json is empty."),
        (b" \n", "r.json is empty."),
        (b"steps: 3", "r.json is not JSON, so it holds no Report"),
        (b"\x89PNG\r\n\x1a\n", "r.json is no text file, so it holds no Report."),
        (b"[" * 100_000, "r.json is not JSON"),
        (b"[1, 2]", "r.json: This is not a parallab Report"),
        (b'{"schema": "parallab.report/9"}', "has the schema 'parallab.report/9'; this version"),
        (b'{"schema": "parallab.reports/1"}', "damaged collection of Reports"),
        (b'{"schema": "parallab.reports/1", "reports": [{"name": "a", "report": 0}]}', "no schema"),
        (json.dumps(recorded(0).to_dict()).encode(), "r.json: This Report has no finished step"),
        (json.dumps(recorded().to_dict()).replace("500992", '"many"').encode(), "is damaged"),
    ],
)  # fmt: skip
def test_what_is_no_report_is_said_in_a_sentence(data, words):
    with pytest.raises(ReportError, match=re.escape(words)):
        collection.read("r.json", data)


def damage(path: str, value: object) -> bytes:
    """The recorded Report with something else at a place such as ranks/0/steps/0/seconds."""
    found = recorded().to_dict()
    *before, last = (int(p) if p.isdecimal() else p for p in path.split("/"))
    at = found
    for part in before:
        at = at[part]
    at[last] = value
    return json.dumps(found).encode()


STEP = "ranks/0/steps/0"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("environment/represents", 5),
        ("ranks/0/rank", "one"),
        ("ranks/0/coords", {"zz": 1}),
        (f"{STEP}/memory/peak_bytes", 10**400),
        (f"{STEP}/memory/series", {"seconds": ["a"], "parameters": ["b"]}),
        (f"{STEP}/memory/series", {"seconds": [0.0], "parameters": [1, 2]}),
        (f"{STEP}/memory/phases", [{"phase": "forward", "peak_bytes": "a", "by_category": {}}]),
        (f"{STEP}/communication/0/op", "teleport"),
        (f"{STEP}/communication/0/axis", "zz"),
    ],
)
def test_what_cannot_be_drawn_is_refused_when_it_is_opened(path, value):
    with pytest.raises(ReportError, match="This Report is damaged"):
        collection.read("r.json", damage(path, value))


def test_a_file_that_is_too_large_is_not_even_read(tmp_path, monkeypatch):
    with (tmp_path / "big.json").open("wb") as file:
        file.truncate(100 * 2**20)
    monkeypatch.setattr("pathlib.Path.open", None)
    with pytest.raises(ReportError, match=r"has 100 MiB, and files of Reports are read up to 64"):
        collection.load(tmp_path / "big.json")


def test_paths(tmp_path):
    for name in ("b.json", "a.json", "notes.txt"):
        (tmp_path / name).touch()
    both = [tmp_path / "a.json", tmp_path / "b.json"]
    assert collection.paths(str(tmp_path)) == both
    assert collection.paths(f" {tmp_path}/*.json ") == both
    assert collection.paths("r.json")[0].name == "r.json"
    with pytest.raises(ReportError, match="no file"):
        collection.paths(f"{tmp_path}/c*.json")
    with pytest.raises(ReportError, match="nowhere"):
        collection.load(tmp_path / "nowhere.json")
    assert collection.paths(f"{tmp_path.parent}/{tmp_path.name[:-1]}?/a.json") == both[:1]
    (tmp_path / "run[1].json").touch()
    assert collection.paths(f"{tmp_path}/run[1].json") == [tmp_path / "run[1].json"]


@pytest.mark.parametrize("words", ["a\0b", "~nobody-of-this-name/r.json", "x" * 5000])
def test_what_is_no_path_is_a_sentence(words):
    with pytest.raises(ReportError, match=r"no path here|cannot be read"):
        collection.load(collection.paths(words)[0])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "r.json")
    with pytest.raises(ReportError, match=r"/r.json is a pipe, not a file\.$"):
        collection.load(tmp_path / "r.json")


# What is taken along.


def test_the_table_has_a_row_for_each_rank(two):
    rows = list(csv.DictReader(io.StringIO(export.to_csv(two))))
    assert [(row["run"], row["rank"]) for row in rows] == [
        ("ddp <b>", "0"), ("ddp <b>", "1"), ("'=cmd()", "0"), ("'=cmd()", "1")
    ]  # fmt: skip
    first = rows[0]
    assert first["source"] == "measured"
    assert (first["peak_bytes"], first["peak_parameters_bytes"]) == ("1048576", "500992")
    assert (first["payload_dp_bytes"], first["wire_dp_bytes"]) == ("500992", "500992")
    assert float(first["step_seconds"]) == pytest.approx(0.21)
    assert first["bubble_idle_of_total"] == ""
    assert first["plan_strategy"] == "ddp"
    assert export.to_csv([]) == ""


def test_the_page_needs_nothing_else(two):
    page = export.to_page(two, (0, 1))
    assert "<script" not in page
    addresses = re.findall(r"""(?:src|href)=["']([^"']{0,30})|url\(""", page)
    assert addresses
    assert all(address.startswith("data:image/") for address in addresses)
    assert "<b>" not in page.replace("<b></b>", "").replace("<b>A</b>", "").replace("<b>B</b>", "")
    assert "ddp &lt;b&gt; and =cmd() compared" in page
    assert "Strategy ddp → zero1" in page
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    assert page.count("<img ") == 3


def test_a_page_of_one_report_compares_nothing(two):
    page = export.to_page(two[:1])
    assert "What changed" not in page
    assert "All side by side" not in page


def test_a_page_of_three_has_a_column_for_each(two):
    third = Named("third", two[0].report)
    assert "<th>third</th>" in export.side_by_side([*two, third])


def test_differences_have_signs():
    small, large = recorded(), recorded(6, model="micro")
    table = export.difference_table(small, large)
    assert '<td class="pl-text">peak</td><td>1,049,600</td><td>1,049,600</td><td>0</td>' in table
    pipeline = fake_report("pp", steps=4)
    changed = Report.from_dict(pipeline.to_dict())
    assert "points" in export.difference_table(pipeline, changed)


def test_the_picture_shares_its_scales():
    reports = named((short_name(r), r) for r in (
        fake_report("ddp", steps=3), fake_report("3d", 8, steps=3),
        fake_prediction(fake_report().model, Plan("zero3", 4)),
    ))  # fmt: skip
    figure = plot_comparison(reports, marks=["A", "", "B"])
    titles = [ax.texts[0].get_text() for ax in figure.axes]
    memory, sent, time, idle = figure.axes
    assert len(titles) == 4
    written = [text.get_text() for text in memory.texts]
    for words in ("ddp ×4, mini", "3d ×2×2×2 1f1b, mini", "predicted", "A", "B"):
        assert words in written
    longest = max(patch.get_x() + patch.get_width() for patch in memory.patches)
    assert longest < memory.get_xlim()[1]
    colours = {patch.get_facecolor()[:3] for patch in memory.patches if patch.get_y() < 1}
    from matplotlib.colors import to_rgb

    assert to_rgb(CATEGORY_COLOURS["optimizer"]) in colours
    assert "no time" in [text.get_text() for text in time.texts]
    assert "no pipeline" in [text.get_text() for text in idle.texts]
    assert sent.get_xlabel().endswith("on the wire")


def test_columns_that_nobody_knows_are_left_out():
    report = fake_prediction(fake_report().model, Plan("zero3", 4))
    assert len(plot_comparison([Named("one", report)]).axes) == 2
    with pytest.raises(ValueError, match="no Report"):
        plot_comparison([])


# In the terminal.


def test_files_from_the_terminal(two, tmp_path, capsys):
    both = tmp_path / "both.json"
    both.write_text(collection.to_json(two))
    targets = [tmp_path / f"out.{kind}" for kind in ("html", "csv", "png")]
    flags = [f for flag, path in zip(("--html", "--csv", "--plot"), targets, strict=True)
             for f in (flag, str(path))]  # fmt: skip
    assert main(["compare", str(both), *flags]) == 0
    out = capsys.readouterr().out
    assert "A  ddp <b>: measured, nano, ddp on 2" in out
    assert "Plan           Strategy ddp → zero1" in out
    page, table, picture = (path.read_bytes() for path in targets)
    assert page.startswith(b"<!DOCTYPE html>")
    assert table.decode("utf-8-sig").count("\n") == 5
    assert picture.startswith(b"\x89PNG")


def test_two_results_need_two_files(two, tmp_path, capsys):
    path = two[0].report.save(tmp_path / "r.json")
    target = str(tmp_path / "out")
    with pytest.raises(SystemExit):
        main(["compare", str(path), "--html", target, "--csv", target])
    assert "--html and --csv would both write" in capsys.readouterr().err


def test_no_result_is_written_over_a_report(two, tmp_path, capsys):
    path = two[0].report.save(tmp_path / "r.json")
    with pytest.raises(SystemExit):
        main(["compare", str(path), "--html", str(path)])
    assert "would overwrite a Report that is compared" in capsys.readouterr().err
    assert collection.load(path)[0].report == two[0].report
