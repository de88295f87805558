"""The Compare panel in a real page: pin, open, compare, take along, replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from parallab.compare import collection
from parallab.plots.style import CATEGORY_COLOURS
from tests.browser.conftest import Notebook, Open
from tests.browser.visit import both_themes, choose, lab
from tests.synthetic import fake_report


def downloaded(notebook: Notebook, panel: Any, kind: str) -> bytes:
    """What the link for that format leads to."""
    panel.locator(f"button.pl-take-{kind}").click()
    link = panel.locator(f"a.pl-link[download$='.{kind}']")
    link.wait_for()
    with notebook.page.expect_download() as waiting:
        link.click()
    assert waiting.value.suggested_filename == f"parallab-comparison.{kind}"
    return Path(waiting.value.path()).read_bytes()


def upload(notebook: Notebook, panel: Any, *files: dict[str, Any]) -> None:
    with notebook.page.expect_file_chooser() as waiting:
        panel.locator("button.pl-upload").click()
    waiting.value.set_files(list(files))


def test_two_runs_are_compared_and_taken_along(open_notebook: Open) -> None:
    notebook = open_notebook(cells=(lab(),))
    notebook.run_all()
    notebook.panel("idle")
    page = choose(notebook, "ddp")
    expect(page.locator("button.pl-pin").first).to_be_disabled()
    page.locator("button.pl-run").click()
    notebook.panel("done").locator("button.pl-pin:enabled").first.click()
    page.locator("button.pl-tab-compare", has_text="Compare (1)").click()
    panel = page.locator(".pl-compare:not(.pl-hidden)")
    saved = json.dumps(fake_report("zero3", steps=6, seq=64).to_dict()).encode()
    upload(
        notebook, panel,
        {"name": "saved.json", "mimeType": "application/json", "buffer": saved},
        {"name": "notes.json", "mimeType": "application/json", "buffer": b"to do"},
    )  # fmt: skip
    panel.locator(".pl-why", has_text="notes.json is not JSON").wait_for()
    panel.locator(".pl-changes dd", has_text="Strategy ddp → zero3").wait_for()
    expect(panel.locator(".pl-pin-row")).to_have_count(2)
    # Each matter beside its sentences, though JupyterLab has a style of its own for such lists.
    title, words = (
        panel.locator(f".pl-changes {tag}").first.bounding_box() for tag in ("dt", "dd")
    )
    assert (title["y"], title["x"] + title["width"] < words["x"]) == (words["y"], True)
    panel.locator("img.pl-fig").wait_for()
    both_themes(notebook, panel, "compare")
    notebook.expect_painted(CATEGORY_COLOURS["optimizer"], 0.01, which=1)

    assert downloaded(notebook, panel, "png").startswith(b"\x89PNG")
    assert downloaded(notebook, panel, "csv").decode("utf-8-sig").startswith("run,source,model,")
    again = collection.read("again.json", downloaded(notebook, panel, "json"))
    assert [pin.name for pin in again] == ["ddp ×4, mini", "saved"]
    assert b"Strategy ddp \xe2\x86\x92 zero3" in downloaded(notebook, panel, "html")

    panel.locator("button.pl-replay").nth(1).click()
    replay = "Replay of a saved run, measured earlier on cpu. Nothing runs now."
    expect(notebook.panel("done")).to_contain_text(replay)
    assert notebook.errors() == []
