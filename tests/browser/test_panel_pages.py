"""The panel in a real page, on made-up runs: what it looks like, and what it survives."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from parallab.plots.style import CATEGORY_COLOURS, OPERATION_COLOURS
from tests.browser.conftest import Open, share_of
from tests.browser.visit import choose, lab

COUNT_FRAMES = """() => {
    window.frames_shown = 0;
    const picture = document.querySelector('img.pl-fig');
    picture.addEventListener('load', () => { window.frames_shown += 1; });
    window.count_from = performance.now();
}"""


def test_a_run_paints_memory_and_communication_and_nothing_jumps(open_notebook: Open) -> None:
    notebook = open_notebook(cells=(lab(),))
    notebook.run_all()
    page = choose(notebook, "zero3")
    idle = notebook.panel("idle").bounding_box()
    notebook.screenshot_panel("panel_idle")
    before = notebook.pixels()
    page.locator("button.pl-run").click()
    running = notebook.panel("running").bounding_box()
    expect(page.locator("button.pl-run")).to_be_disabled()
    done = notebook.panel("done").bounding_box()
    assert idle["height"] == running["height"] == done["height"]
    for category in ("parameters", "gradients", "optimizer", "activations"):
        colour = CATEGORY_COLOURS[category]
        at_first = share_of(before, colour, bottom=0.55)
        notebook.expect_painted(colour, at_first + 0.004, bottom=0.55)
    for operation in ("all_gather", "reduce_scatter"):
        notebook.expect_painted(OPERATION_COLOURS[operation], 0.015, top=0.75)
    assert notebook.pixels().shape == before.shape
    notebook.screenshot_panel("panel_light")
    assert notebook.errors() == []


def test_every_width_and_theme(open_notebook: Open) -> None:
    notebook = open_notebook(cells=(lab(),), width=760)
    notebook.run_all()
    page = choose(notebook, "zero3")
    page.locator("button.pl-run").click()
    panel = notebook.panel("done")
    for theme in ("Light", "Dark"):
        notebook.theme(theme)
        for width in (760, 1100, 1440, 1900):
            notebook.width(width)
            # Nothing is cut off at the right, inside or outside.
            overflow = "e => [e.scrollWidth - e.clientWidth, e.getBoundingClientRect().right]"
            inside, right = panel.evaluate(overflow)
            assert inside <= 0
            assert right <= width
            brightness = notebook.pixels().mean()
            assert brightness > 200 if theme == "Light" else brightness < 90
            notebook.screenshot(f"page_{width}_{theme.lower()}")


def test_refusals_and_failures_say_why_and_closing_takes_it_away(
    open_notebook: Open,
) -> None:
    notebook = open_notebook(cells=(lab(),))
    notebook.run_all()
    page = notebook.page
    page.locator("button.pl-strategy-tp").click()
    three = page.locator("button.pl-devices-3")
    expect(three).to_be_disabled()
    expect(three).to_have_attribute("title", re.compile("does not divide"))
    colour = "e => getComputedStyle(e).color"
    options = page.locator(".pl-model option")
    assert options.last.evaluate(colour) != options.first.evaluate(colour)
    page.locator(".pl-model select").select_option(label=options.last.inner_text())
    expect(page.locator(".pl-why").first).to_contain_text("needs")
    expect(page.locator("button.pl-run")).to_be_disabled()
    notebook.screenshot_panel("panel_too_big")

    notebook.evaluate("lab.panel.runner.run_options.update(fail_at=2)")
    page.locator(".pl-model select").select_option(index=2)
    choose(notebook, "ddp", steps=6)
    page.locator("button.pl-run").click()
    panel = notebook.panel("failed")
    expect(panel.locator(".pl-error")).to_contain_text("ran out of memory <8 GiB>")
    expect(panel.locator(".pl-error pre")).to_be_hidden()
    expect(page.locator("button.pl-run")).to_be_enabled()
    notebook.screenshot_panel("panel_error")

    notebook.evaluate("lab.panel.runner.run_options.update(fail_at=None, polls_per_step=5)")
    choose(notebook, "ddp", steps=100)
    page.locator("button.pl-run").click()
    notebook.panel("running")
    notebook.evaluate("lab.close()")
    page.locator(".pl-panel").wait_for(state="detached")


@pytest.mark.bench
def test_eight_ranks_show_five_frames_a_second(open_notebook: Open) -> None:
    notebook = open_notebook(cells=(lab(polls_per_step=4),))
    notebook.run_all()
    page = choose(notebook, "zero3", steps=25, devices=8)
    page.locator("button.pl-run").click()
    notebook.panel("running")
    before = int(notebook.evaluate("lab.panel.frames"))
    page.evaluate(COUNT_FRAMES)
    notebook.panel("done")
    drawn = int(notebook.evaluate("lab.panel.frames")) - before
    shown, seconds = page.evaluate(
        "() => [window.frames_shown, (performance.now() - window.count_from) / 1000]"
    )
    notebook.screenshot_panel("panel_eight_ranks")
    print(f"{drawn} frames drawn, {shown} shown in {seconds:.1f} s: {shown / seconds:.1f} a second")
    assert seconds > 3
    assert shown >= 0.8 * drawn
    assert shown / seconds >= 5


def test_a_run_outlives_the_page(open_notebook: Open) -> None:
    notebook = open_notebook(cells=(lab(polls_per_step=5),))
    notebook.run_all()
    page = choose(notebook, "zero3", steps=40)
    page.locator("button.pl-run").click()
    notebook.panel("running")
    notebook.command("docmanager:save")
    page.reload()
    notebook.panel("running")
    page.locator("button.pl-stop").click()
    notebook.panel("stopped")
    expect(notebook.panel()).to_contain_text(re.compile(r"Stopped after \d+ steps"))
    notebook.expect_painted(CATEGORY_COLOURS["optimizer"], 0.01)

    # And a run that ends while the page is not there.
    notebook.evaluate("lab.panel.runner.run_options.clear()")
    choose(notebook, "zero3", steps=12)
    page.locator("button.pl-run").click()
    notebook.panel("running")
    notebook.command("docmanager:save")
    page.reload()
    panel = notebook.panel("done")
    expect(page.locator("button.pl-run")).to_be_enabled()
    expect(panel).to_contain_text("step 11: loss")


def test_two_panels_in_one_kernel(open_notebook: Open) -> None:
    notebook = open_notebook(cells=(lab("one"), lab("two")))
    notebook.run_all()
    page = notebook.page
    for which in (0, 1):
        notebook.panel("idle", 0)
        page.locator(".pl-panel").nth(which).locator("button.pl-run").click()
    expect(page.locator(".pl-panel.pl-done")).to_have_count(2)
    for which in (0, 1):
        notebook.expect_painted(CATEGORY_COLOURS["optimizer"], 0.01, which)
    assert notebook.errors() == []
