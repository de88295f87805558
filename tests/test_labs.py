"""Every lab runs from top to bottom, as a reader would run it: with nothing filled in."""

from __future__ import annotations

import ast
import base64
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.util import run_sync

from parallab.check.registry import exercises

LABS = sorted((Path(__file__).parents[1] / "labs").glob("[0-9]*.ipynb"))


# Nobody looks at the panel, so it need not draw twenty times a second.
AS_NEW = "%reset -f\nfrom parallab.panels import run as _run\n_run.POLL_SECONDS = 0.3"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """One kernel for all labs, since its engines take longest to start; each lab finds it empty."""
    home = str(tmp_path_factory.mktemp("labs"))
    with pytest.MonkeyPatch.context() as patch:
        # Nothing of ours is written to, or read from, the home of whoever runs the tests.
        patch.setenv("IPYTHONDIR", f"{home}/ipython")
        patch.setenv("JUPYTER_RUNTIME_DIR", f"{home}/runtime")
        empty = nbformat.v4.new_notebook()
        manager = NotebookClient(empty).create_kernel_manager()
        NotebookClient(empty, km=manager, resources={"metadata": {"path": home}}).execute()
        yield manager
        run_sync(manager.shutdown_kernel)()


# The first lab is run, and played to its end, by tests/browser/test_first_lab.py.
@pytest.fixture(scope="module", params=LABS[1:], ids=lambda path: path.stem)
def executed(request, kernel):
    """A lab after all its cells have run."""
    notebook = nbformat.read(request.param, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(AS_NEW))
    client = NotebookClient(notebook, km=kernel, timeout=120, store_widget_state=True)
    client.execute()
    client.kc.stop_channels()
    return notebook


def code_cells(path):
    return [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_a_lab_is_short_and_stored_clean(path):
    assert len(nbformat.read(path, as_version=4).cells) <= 15
    for cell in code_cells(path):
        assert cell.outputs == []
        assert cell.execution_count is None
        assert len(cell.source.splitlines()) <= 8


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_a_lab_defines_only_functions_that_wait_for_their_body(path):
    for cell in code_cells(path):
        functions = [n for n in ast.parse(cell.source).body if isinstance(n, ast.FunctionDef)]
        assert not functions or "exercise" in cell.metadata.get("tags", [])
        for function in functions:
            assert [ast.unparse(line) for line in function.body] == ["..."]


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_a_lab_asks_its_exercises_and_answers_none(path):
    asked = [
        (node.func, [ast.unparse(argument) for argument in node.args])
        for cell in code_cells(path)
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("pl.check")
    ]
    for called in ("pl.check.question", "pl.check"):
        names = {args[0].strip("'") for func, args in asked if ast.unparse(func) == called}
        assert names == {e.name for e in exercises().values() if e.lab == path.stem}
    checks = [args for func, args in asked if ast.unparse(func) == "pl.check"]
    assert all(len(args) == 2 for args in checks)
    assert not any(args[1][0].isdigit() or args[1].startswith("pl.") for args in checks)


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
    assert all(len(picture) > 10_000 for picture in pictures)


@pytest.mark.engines
def test_what_is_not_filled_in_is_red_and_stops_nobody(executed):
    said = [
        output.data["text/plain"]
        for cell in executed.cells
        for output in cell.get("outputs", [])
        if "data" in output
    ]
    waiting = [text for text in said if text.startswith("Not yet. Nothing is filled in yet")]
    sources = " ".join(cell.source for cell in executed.cells if cell.cell_type == "code")
    assert len(waiting) == len(re.findall(r"pl\.check\(", sources)) > 0
    assert not any(text.startswith("Right.") for text in said)


@pytest.mark.engines
def test_the_panel_in_a_lab_has_seen_the_last_run(executed):
    if not any("lab.run(" in cell.source for cell in executed.cells):
        pytest.skip("this lab trains nothing")
    state = executed.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    classes = [set(w["state"].get("_dom_classes", [])) for w in state.values()]
    assert any({"pl-panel", "pl-done"} <= found for found in classes)
