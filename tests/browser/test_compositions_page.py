"""Compositions in a real page: linked degrees, and eight engines that run all three axes."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from parallab.plots.style import CATEGORY_COLOURS
from tests.browser.conftest import Notebook, Open
from tests.browser.visit import lab

# A Lab on engines, which notes how many steps each look at the run brought, and each new picture.
REAL = """import parallab as pl
lab, news, drawn = pl.Lab(device="cpu"), [], []
lab.panel._picture.image.observe(drawn.append, "value")
show = lab.panel._show
def noted(progress):
    news.append(len(progress.steps))
    show(progress)
lab.panel._show = noted
lab"""
STEPS = 24
COUNT_PICTURES = """() => {
    window.pictures = 0;
    const count = changes => { window.pictures += changes.length; };
    const picture = document.querySelector('img.pl-fig');
    new MutationObserver(count).observe(picture, {attributes: true, attributeFilter: ['src']});
}"""
PICTURE_IS = """async digest => {
    const bytes = await (await fetch(document.querySelector('img.pl-fig').src)).arrayBuffer();
    const hash = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
    return [...hash].map(byte => byte.toString(16).padStart(2, '0')).join('') === digest;
}"""
BAR_IS_FULL = """() => {
    const bar = document.querySelector('.pl-progress .progress-bar');
    return bar.getBoundingClientRect().width >= bar.parentElement.clientWidth - 1;
}"""


def click(notebook: Notebook, *names: str) -> None:
    """Clicks choices, each once the page shows what the one before has brought."""
    for name in names:
        notebook.page.locator(f"button.pl-{name}:enabled").click()
        notebook.page.locator(f"button.pl-{name}.pl-chosen").wait_for()


def fill(notebook: Notebook, which: int, value: int) -> None:
    """Types into one of the number fields: batch, sequence, micro-batches, steps."""
    field = notebook.page.locator(".pl-fields input[type=number]").nth(which)
    field.fill(str(value))
    field.press("Enter")


def chosen(notebook: Notebook) -> str:
    return notebook.evaluate("(lab.panel.controls.plan.dp, lab.panel.controls.plan.pp, "
                             "lab.panel.controls.plan.tp)")  # fmt: skip


def test_degrees_are_linked_and_fit_every_width_and_theme(open_notebook: Open) -> None:
    notebook = open_notebook(cells=(lab(),))
    notebook.run_all()
    page = notebook.page
    shown = {"dp": "pl-dp-1", "zero": "pl-zero-1", "schedule": "pl-schedule-1f1b",
             "sequence parallel": "pl-sequence_parallel-True"}  # fmt: skip

    def only(*names: str) -> None:
        """Waits until these are shown, and no others."""
        for name, css in shown.items():
            state = "visible" if name in names else "hidden"
            page.locator(f"button.{css}").wait_for(state=state)

    only()
    click(notebook, "strategy-3d", "dp-2", "pp-2", "tp-2", "zero-1", "schedule-1f1b")
    only(*shown)
    expect(page.locator(".pl-notice")).to_contain_text("Devices 4 → 8")
    click(notebook, "tp-4", "dp-1")
    assert chosen(notebook) == "(1, 2, 4)"
    click(notebook, "dp-4", "tp-2", "pp-1")
    assert chosen(notebook) == "(4, 1, 2)"
    only("dp", "zero", "sequence parallel")
    eight = page.locator("button.pl-tp-8")
    expect(eight).to_be_disabled()
    expect(eight).to_have_attribute("title", re.compile("tp may be 1, 2, 4"))
    notebook.screenshot_panel("composition_idle")
    click(notebook, "strategy-pp", "devices-4")
    only("schedule")
    expect(page.locator(".pl-fields input[type=number]").nth(2)).to_have_value("8")
    click(notebook, "strategy-mp")
    only()
    page.locator(".pl-fields input[type=number]").nth(2).wait_for(state="hidden")

    notebook.width(760)
    click(notebook, "strategy-3d", "sequence_parallel-True", "pp-2")
    idle = notebook.panel("idle").bounding_box()
    assert idle["x"] + idle["width"] <= 760
    page.locator("button.pl-run").click()
    panel = notebook.panel("done")
    expect(panel).to_contain_text(re.compile(r"\d+ %\s*idle \(formula 20 %\)"))
    for theme in ("Light", "Dark"):
        notebook.theme(theme)
        for width in (760, 1440):
            notebook.width(width)
            assert panel.evaluate("e => e.scrollWidth - e.clientWidth") <= 0
            notebook.screenshot(f"composition_{width}_{theme.lower()}")
    assert notebook.pixels().mean() < 90
    assert notebook.errors() == []


def run(notebook: Notebook, steps: int) -> int:
    """Presses Run and checks the page, until the run is over. Returns how many pictures came."""
    page = notebook.page
    page.evaluate(COUNT_PICTURES)
    # Afterwards, since the choices before may still be on their way as a picture.
    notebook.evaluate("(news.clear(), drawn.clear())")
    page.locator("button.pl-run").click()
    notebook.panel("running")
    page.locator("button.pl-stop:enabled").wait_for()
    expect(page.locator("button.pl-choice:enabled")).to_have_count(0)
    panel = notebook.panel("done")
    expect(page.locator("button.pl-run")).to_be_enabled()
    expect(page.locator("button.pl-stop")).to_be_disabled()
    expect(page.locator("button.pl-release")).to_be_enabled()
    page.wait_for_function(BAR_IS_FULL)
    expect(panel).to_contain_text(f"step {steps - 1}: loss")
    logged = re.findall(r"step (\d+): loss", panel.inner_text())
    assert logged[-steps:] == [str(step) for step in range(steps)]
    digest = notebook.evaluate("__import__('hashlib').sha256(lab.panel.picture).hexdigest()")
    page.wait_for_function(PICTURE_IS, arg=digest.strip("'"))
    return int(page.evaluate("() => window.pictures"))


@pytest.mark.engines
def test_eight_engines_run_3d_in_the_panel(open_notebook: Open) -> None:
    notebook = open_notebook(cells=(REAL,))
    notebook.run_all()
    page = notebook.page
    nano = page.locator(".pl-model option").first.inner_text()
    page.locator(".pl-model select").select_option(label=nano)
    fill(notebook, 1, 32)
    fill(notebook, 3, STEPS)
    click(notebook, "strategy-3d", "dp-2", "pp-2", "tp-2", "zero-1")
    pictures = run(notebook, STEPS)
    notebook.screenshot_panel("composition_engines")
    drawn = int(notebook.evaluate("len(drawn)"))
    news = json.loads(notebook.evaluate("[n for n in news if n]"))
    print(f"{drawn} pictures drawn and {pictures} shown; steps came as {news}")
    assert sum(news) == STEPS
    # Whatever brought steps was drawn, and every picture arrives.
    assert pictures >= drawn >= len(news)
    plan = "(p.strategy, p.dp, p.pp, p.tp, p.zero) for p in [lab.report.plan]"
    assert notebook.evaluate(f"[{plan}]") == "[('3d', 2, 2, 2, 1)]"
    notebook.expect_painted(CATEGORY_COLOURS["optimizer"], 0.005)
    # Another strategy on the same engines; two layers are two stages.
    click(notebook, "strategy-pp", "devices-2", "schedule-gpipe")
    run(notebook, STEPS)
    expect(notebook.panel()).to_contain_text("stage 1 on rank 1: block 1, head")
    assert notebook.evaluate("lab.report.plan.schedule") == "'gpipe'"
    assert notebook.errors() == []
