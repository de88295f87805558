"""The main job, as a new user does it: open the first lab, choose ZeRO-3, press Run, watch."""

from __future__ import annotations

import re

import pytest

from parallab.plots.style import CATEGORY_COLOURS, OPERATION_COLOURS
from tests.browser.conftest import Open, share_of

pytestmark = pytest.mark.engines


def test_the_first_lab_from_opening_to_a_stopped_run(open_notebook: Open) -> None:
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
    assert notebook.errors() == []
