"""Every lab runs from top to bottom, as a reader would run it."""

from __future__ import annotations

import base64
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

LABS = sorted((Path(__file__).parents[1] / "labs").glob("*.ipynb"))


@pytest.fixture(scope="module", params=LABS, ids=lambda path: path.stem)
def executed(request, tmp_path_factory):
    """A lab after all its cells have run."""
    home = tmp_path_factory.mktemp("labs")
    notebook = nbformat.read(request.param, as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        # Nothing of ours is written to, or read from, the home of whoever runs the tests.
        patch.setenv("IPYTHONDIR", str(home / "ipython"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(home / "runtime"))
        resources = {"metadata": {"path": str(home)}}
        NotebookClient(
            notebook, timeout=120, store_widget_state=True, resources=resources
        ).execute()
    return notebook


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_a_lab_is_short_and_stored_clean(path):
    notebook = nbformat.read(path, as_version=4)
    assert len(notebook.cells) <= 12
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
            assert len(cell.source.splitlines()) <= 6
            # Logic belongs in the package, where it is tested.
            assert not any(word in cell.source for word in ("for ", "while ", "def ", "if "))


@pytest.mark.engines
def test_a_lab_runs_without_a_complaint(executed):
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    assert outputs
    assert [o for o in outputs if o.output_type == "stream" and o.name == "stderr"] == []


@pytest.mark.engines
def test_a_lab_leaves_pictures_for_those_without_a_kernel(executed):
    pictures = [
        base64.b64decode(output.data["image/png"])
        for cell in executed.cells
        for output in cell.get("outputs", [])
        if "data" in output and "image/png" in output.data
    ]
    assert len(pictures) >= 2
    assert all(len(picture) > 20_000 for picture in pictures)


@pytest.mark.engines
def test_the_panel_in_a_lab_has_seen_the_last_run(executed):
    state = executed.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    classes = [set(w["state"].get("_dom_classes", [])) for w in state.values()]
    assert any({"pl-panel", "pl-done"} <= found for found in classes)
