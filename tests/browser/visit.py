"""What tests of several pages do in one: a lab in a cell, choices, both themes."""

from __future__ import annotations

from typing import Any

from tests.browser.conftest import Notebook


def lab(name: str = "lab", **options: object) -> str:
    """A cell that shows a Lab over made-up runs."""
    arguments = ", ".join(f"{key}={value!r}" for key, value in options.items())
    return (
        "from tests.synthetic import FakeRunner\nimport parallab as pl\n"
        f"{name} = pl.Lab(runner=FakeRunner({arguments}))\n{name}"
    )


def choose(notebook: Notebook, strategy: str, steps: int = 10, devices: int = 4) -> Any:
    page = notebook.page
    page.locator(f"button.pl-strategy-{strategy}").click()
    page.locator(f"button.pl-devices-{devices}").click()
    # The last of the four number fields.
    field = page.locator(".pl-fields input[type=number]").nth(3)
    field.fill(str(steps))
    field.press("Enter")
    return page


def both_themes(notebook: Notebook, panel: Any, name: str) -> None:
    """Screenshots in both, and nothing cut off at the right."""
    inside = panel.evaluate("e => e.scrollWidth - e.clientWidth")
    assert inside <= 0
    notebook.screenshot(f"{name}_light")
    notebook.theme("Dark")
    notebook.screenshot(f"{name}_dark")
    notebook.theme("Light")
