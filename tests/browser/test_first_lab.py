"""The first lab, as a new user plays it: run all, press Run, watch, answer, check."""

from __future__ import annotations

import re

import pytest

from parallab.plots.style import CATEGORY_COLOURS, OPERATION_COLOURS
from tests.browser.conftest import Notebook, Open, share_of

pytestmark = pytest.mark.engines


def fill_in(notebook: Notebook, exercise: str, dots: str, answer: str, verdict: str) -> None:
    """Types an answer over what an exercise's cell holds, runs it, and waits for its verdict."""
    page = notebook.page
    cell = page.locator(".jp-CodeCell", has=page.locator(".cm-content", has_text=f'"{exercise}"'))
    editor = cell.locator(".cm-content")
    editor.scroll_into_view_if_needed()
    editor.click()  # a page lays out what is far away only when it comes near
    text = editor.inner_text()
    assert dots in text
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(text.replace(dots, answer, 1))
    page.keyboard.press("Control+Enter")
    cell.locator(".jp-OutputArea", has_text=re.compile(verdict)).wait_for(timeout=90_000)


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

    amiss = r"Not yet\. 12 is not the .*One of four is missing: weight, gradient, and two moments\."
    fill_in(notebook, "bytes-per-parameter", ", ...)", ", 12)", amiss)
    fill_in(notebook, "bytes-per-parameter", ", 12)", ", 16)", r"Right\. ")
    plan = 'plan = pl.Plan("zero3", devices=4, batch=8, seq=128)'
    fill_in(notebook, "fits-in-45", "plan = ...", plan, r"Not yet\. .*above 45 MiB")
    frugal = 'seq=128, recompute="full")'
    fill_in(notebook, "fits-in-45", "seq=128)", frugal, r"Right\. .*within 45 MiB")
    notebook.screenshot("first_lab_answered")
    assert notebook.errors() == []
