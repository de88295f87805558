"""A panel without a browser: widgets are plain objects, and a click is a call."""

from __future__ import annotations

import ipywidgets as widgets

from parallab.panels import Lab

LONG = 30.0


def find(lab: Lab, css: str):
    todo = [lab.widget]
    while todo:
        widget = todo.pop()
        if css in getattr(widget, "_dom_classes", ()):
            return widget
        todo += getattr(widget, "children", ())
    raise AssertionError(f"no widget has the class {css}")


def text(lab: Lab) -> str:
    found, todo = [], [lab.widget]
    while todo:
        widget = todo.pop()
        if isinstance(widget, widgets.HTML):
            found.append(widget.value)
        todo += getattr(widget, "children", ())
    return "\n".join(found)


def click(lab: Lab, css: str) -> None:
    find(lab, css).click()
