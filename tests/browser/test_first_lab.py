"""The first lab, as a new user plays it: run all, press Run, watch, answer, check."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from parallab.plots.style import CATEGORY_COLOURS, OPERATION_COLOURS
from tests.browser.conftest import Notebook, Open

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
    expect(panel).to_contain_text(re.compile(r"Step ([3-9]|\d\d+) of 500"))
    for category in ("parameters", "optimizer", "activations"):
        notebook.expect_painted(CATEGORY_COLOURS[category], 0.005, bottom=0.55)
    for operation in ("all_gather", "reduce_scatter"):
        notebook.expect_painted(OPERATION_COLOURS[operation], 0.001, top=0.55)
    notebook.screenshot("first_lab_running")

    notebook.command("docmanager:save")
    page.reload()
    notebook.panel("running")
    page.locator("button.pl-stop").click()
    panel = notebook.panel("stopped")
    expect(panel).to_contain_text(re.compile(r"Stopped after \d+ of 500 steps"))
    expect(page.locator("button.pl-run")).to_be_enabled()
    notebook.screenshot("first_lab_stopped")

    page.locator("button.pl-release").click()
    expect(page.locator(".pl-log").first).to_contain_text("Released")

    amiss = r"Not yet\. 12 is not the .*One of four is missing: weight, gradient, and two moments\."
    fill_in(notebook, "bytes-per-parameter", ", ...)", ", 12)", amiss)
    fill_in(notebook, "bytes-per-parameter", ", 12)", ", 16)", r"Right\. ")
    plan = 'plan = pl.Plan("zero3", devices=4, batch=8, seq=128)'
    fill_in(notebook, "fits-in-45", "plan = ...", plan, r"Not yet\. .*above 45 MiB")
    frugal = 'seq=128, recompute="full")'
    fill_in(notebook, "fits-in-45", "seq=128)", frugal, r"Right\. .*within 45 MiB")
    notebook.screenshot("first_lab_answered")
    assert notebook.errors() == []
