"""Calculator, advisor and scale in a real page, and the prediction under a run."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.sync_api import expect

from parallab.plots.style import CATEGORY_COLOURS, PALE, tint
from tests.browser.conftest import Notebook, Open
from tests.browser.visit import both_themes, choose, lab
from tests.models.rows import LLAMA

COUNT_PICTURES = """() => {
    window.pictures = 0;
    const picture = document.querySelector('.pl-calculator img.pl-fig');
    picture.addEventListener('load', () => { window.pictures += 1; });
}"""


def open_tab(notebook: Notebook, name: str) -> Any:
    notebook.page.locator(f"button.pl-tab-{name}").click()
    panel = notebook.page.locator(f".pl-{name}:not(.pl-hidden)")
    panel.wait_for()
    panel.locator("img.pl-fig, .pl-advise").first.wait_for()
    return panel


def pale(category: str) -> str:
    return "#" + "".join(f"{round(255 * v):02X}" for v in tint(CATEGORY_COLOURS[category], PALE))


def test_the_prediction_is_shown_before_a_run_and_lies_under_it(open_notebook: Open) -> None:
    notebook = open_notebook(cells=(lab(),))
    notebook.run_all()
    panel = notebook.panel("idle")
    page = choose(notebook, "zero3")
    expect(page.locator(".pl-tiles").first).to_contain_text("pred")
    for category in ("parameters", "optimizer", "activations"):
        notebook.expect_painted(pale(category), 0.004)
    height = panel.bounding_box()["height"]
    page.locator("button.pl-run").click()
    panel = notebook.panel("done")
    notebook.expect_painted(pale("activations"), 0.004)
    notebook.expect_painted(CATEGORY_COLOURS["activations"], 0.004)
    assert panel.bounding_box()["height"] == height
    expect(panel.locator("table.pl-table")).to_be_hidden()
    panel.locator(".pl-compared summary").click()
    expect(panel.locator("table.pl-table")).to_contain_text("predicted")
    expect(panel.locator("table.pl-table")).to_contain_text("measured − predicted")
    notebook.screenshot_panel("why_light")
    notebook.theme("Dark")
    notebook.screenshot_panel("why_dark")
    assert notebook.errors() == []


def test_the_calculator_follows_a_slider_and_a_pasted_config(open_notebook: Open) -> None:
    notebook = open_notebook(cells=(lab(),))
    notebook.run_all()
    panel = open_tab(notebook, "calculator")
    page = notebook.page
    expect(panel).to_contain_text("16 bytes per parameter")
    before = panel.locator(".pl-sum").nth(1).inner_text()
    page.evaluate(COUNT_PICTURES)
    handle = panel.locator(".noUi-handle").first
    handle.scroll_into_view_if_needed()
    box = handle.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for step in range(1, 21):
        page.mouse.move(x + 4 * step, y)
        page.wait_for_timeout(60)
    pictures = page.evaluate("() => window.pictures")
    page.mouse.up()
    print(f"{pictures} pictures while the slider moved for 1.2 s")
    assert pictures >= 2
    expect(panel.locator(".pl-sum").nth(1)).not_to_have_text(before)
    both_themes(notebook, panel, "calculator")

    box = panel.locator("textarea")
    box.fill('{"model_type": "unheard-of"}')
    panel.locator(".pl-why", has_text="unheard-of").wait_for()
    box.fill(json.dumps(LLAMA))
    panel.locator(".pl-notice", has_text="Read as llama (pasted)").wait_for()
    panel.locator("option:checked", has_text="llama (pasted)").wait_for(state="attached")
    assert notebook.errors() == []

    # A page that is loaded again asks only for what was opened.
    notebook.command("docmanager:save")
    page.reload()
    page.locator(".pl-calculator:not(.pl-hidden) img.pl-fig").wait_for(timeout=60_000)
    expect(page.locator(".pl-advisor")).to_have_count(0)
    page.locator("button.pl-tab-run").click()
    notebook.panel("idle").locator("button.pl-run").wait_for()


def test_the_advisor_hands_plans_on_and_scale_shows_all_strategies(open_notebook: Open) -> None:
    notebook = open_notebook(cells=(lab(),))
    notebook.run_all()
    panel = open_tab(notebook, "advisor")
    page = notebook.page
    panel.locator("button.pl-advise").click()
    panel.locator(".pl-option-row").first.wait_for(timeout=60_000)
    run = panel.locator("button.pl-run-this").first
    expect(run).to_be_disabled()
    expect(run).to_have_attribute("title", re.compile("needs at least"))
    both_themes(notebook, panel, "advisor")
    panel.locator("button.pl-calc").first.click()
    page.locator(".pl-calculator:not(.pl-hidden)").wait_for()
    open_tab(notebook, "advisor")
    panel.locator(".pl-advisor-gpu select").select_option(label="this machine")
    panel.locator("select").first.select_option(index=2)
    panel.locator("button.pl-advise").click()
    page.locator("button.pl-run-this:enabled").first.wait_for(timeout=60_000)
    page.locator("button.pl-run-this:enabled").first.click()
    notebook.panel("idle").locator("button.pl-run:enabled").click()
    notebook.panel("done")

    panel = open_tab(notebook, "scale")
    panel.locator(".pl-notice", has_text="3d on 64").wait_for(timeout=60_000)
    both_themes(notebook, panel, "scale")
    panel.locator("button.pl-scale-strategy-zero3").click()
    panel.locator(".pl-notice", has_text="zero3 on 64").wait_for(timeout=60_000)
    assert notebook.errors() == []
