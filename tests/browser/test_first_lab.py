"""The first lab, as a new user plays it: run all, press Run, watch, answer, check."""

from __future__ import annotations

import re

import pytest

from parallab.plots.style import CATEGORY_COLOURS, OPERATION_COLOURS
from tests.browser.conftest import Notebook, Open, share_of

pytestmark = pytest.mark.engines


def fill_in(notebook: Notebook, exercise: str, dots: str, answer: str) -> str:
    """Types an answer over what stands in an exercise's cell, runs it, and returns the verdict."""
    page = notebook.page
    cell = page.locator(".jp-CodeCell", has=page.locator(".cm-content", has_text=f'"{exercise}"'))
    editor = cell.locator(".cm-content")
    editor.scroll_into_view_if_needed()
    text = editor.inner_text()
    assert dots in text
    before = cell.locator(".jp-InputPrompt").inner_text()
    editor.click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(text.replace(dots, answer, 1))
    page.keyboard.press("Control+Enter")
    # Answered where the number of the cell is another.
    page.wait_for_function(
        "([cell, before]) => /\\d/.test(cell.innerText) && cell.innerText !== before",
        arg=[cell.locator(".jp-InputPrompt").element_handle(), before],
        timeout=90_000,
    )
    return str(cell.locator(".jp-OutputArea").inner_text())


def test_the_first_lab_is_played_from_opening_to_its_last_check(open_notebook: Open) -> None:
    notebook = open_notebook("00_start.ipynb")
    page = notebook.page
    notebook.run_all()
    notebook.panel("done")
    notebook.screenshot_panel("first_lab_panel")

    page.locator("button.pl-strategy-zero3").click()
    field = page.locator(".pl-fields input[type=number]").nth(3)
    field.fill("500")
    field.press("Enter")
    page.locator("button.pl-run").click()
    panel = notebook.panel("running")
    # Steps 0 and 1 are traced; after the third they have been drawn.
    third = (
        "() => /Step ([3-9]|\\d\\d+) of 500/.test(document.querySelector('.pl-panel').innerText)"
    )
    page.wait_for_function(third, timeout=90_000)
    running = notebook.pixels()
    half = len(running) * 5 // 9
    for category in ("parameters", "optimizer", "activations"):
        assert share_of(running[:half], CATEGORY_COLOURS[category]) > 0.005, category
    for operation in ("all_gather", "reduce_scatter"):
        assert share_of(running[half:], OPERATION_COLOURS[operation]) > 0.001, operation
    notebook.screenshot("first_lab_running")

    notebook.command("docmanager:save")
    page.reload()
    notebook.panel("running")
    page.locator("button.pl-stop").click()
    panel = notebook.panel("stopped")
    assert re.search(r"Stopped after \d+ of 500 steps", panel.inner_text())
    assert page.locator("button.pl-run").is_enabled()
    notebook.screenshot("first_lab_stopped")

    page.locator("button.pl-release").click()
    page.wait_for_function("() => document.querySelector('.pl-log').innerText.includes('Released')")

    wrong = fill_in(notebook, "bytes-per-parameter", ", ...)", ", 12)")
    assert "Not yet. One of four is missing: weight, gradient, and two moments." in wrong
    assert "Right. " in fill_in(notebook, "bytes-per-parameter", ", 12)", ", 16)")
    plan = 'plan = pl.Plan("zero3", devices=4, batch=8, seq=128{})'
    refused = fill_in(notebook, "fits-in-45", "plan = ...", plan.format(""))
    assert re.search(r"Not yet\. .*above 45 MiB", refused)
    passed = fill_in(notebook, "fits-in-45", "seq=128)", 'seq=128, recompute="full")')
    assert re.search(r"Right\. .*within 45 MiB", passed)
    notebook.screenshot("first_lab_answered")
    assert notebook.errors() == []
