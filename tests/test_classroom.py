"""The leader's folder of Reports, and the notebook that shows it."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import parallab as pl
from parallab.compare import collection
from parallab.compare.collection import Named
from tests.recorded import recorded
from tests.synthetic import fake_report

LEADER = Path(__file__).parents[1] / "labs" / "leader.ipynb"


@pytest.fixture
def folder(tmp_path):
    """Two participants' Reports, a third's two pins in one file, and what is none."""
    reports = tmp_path / "reports"
    reports.mkdir()
    recorded().save(reports / "Grace.json")
    fake_report("pp", 4, steps=3).save(reports / "ada.json")
    pins = [Named("mine", recorded()), Named("again", recorded())]
    (reports / "linus.json").write_text(collection.to_json(pins))
    (reports / "empty.json").write_text("")
    (reports / "other.json").write_text('{"schema": "else/1"}')
    recorded(0).save(reports / "stopped.json")
    (reports / "notes.txt").write_text("not looked at")
    return reports


def test_reports_are_called_after_their_files_and_the_rest_is_named(folder):
    everyone = pl.Classroom(folder)
    assert [name for name, _ in everyone.reports] == [
        f"ada: {collection.short_name(fake_report('pp', 4))}", "Grace: ddp ×2, nano",
        "linus: mine", "linus: again",
    ]  # fmt: skip
    assert everyone.skipped == {
        "empty.json": "empty.json is empty.",
        "other.json": "This Report has the schema 'else/1'; this version reads parallab.report/1.",
        "stopped.json": "This Report has no finished step, so it has no figures to compare.",
    }
    text = repr(everyone)
    assert text.startswith(f"4 Reports in {folder}, 3 left out.")
    assert "stopped.json: This Report has no finished step" in text
    assert "<td" in everyone._repr_html_()


def test_one_picture_has_a_row_for_everybody(folder):
    figure = pl.Classroom(folder).plot()
    words = [text.get_text() for text in figure.axes[0].texts]
    assert "Grace: ddp ×2, nano" in words
    assert len(figure.axes) == 4  # memory, bytes, time, and the pipeline's bubble


@pytest.mark.parametrize("make", [True, False])
def test_a_folder_without_reports_is_a_sentence(tmp_path, make):
    if make:
        (tmp_path / "reports").mkdir()
    everyone = pl.Classroom(tmp_path / "reports")
    said = "There is no .json file in" if make else "There is no folder"
    assert repr(everyone).startswith(said)
    assert everyone.plot().texts[0].get_text().startswith(said)


def test_the_leaders_notebook_runs_before_anybody_has_saved(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook = nbformat.read(LEADER, as_version=4)
    NotebookClient(notebook, timeout=90, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert outputs[0].data["text/plain"].startswith("There is no folder reports yet")
    assert "image/png" in outputs[1].data
