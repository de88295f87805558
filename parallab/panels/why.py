"""After a run: predicted, simulated and measured side by side, to the byte, and why they differ."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

import ipywidgets as widgets

from parallab.compare.side_by_side import Row, compare, compared_ranks, differences
from parallab.panels.parts import Look
from parallab.panels.pins import PinButton, Pins
from parallab.panels.theory import Simulation
from parallab.plots.style import in_words
from parallab.report import Report

# Until there is something to compare; as high as what comes later, so that nothing jumps.
PROMISE = "After a run: predicted, simulated and measured side by side, and why they differ."


class Why:
    """A line that unfolds to a table, and a button that adds the simulation's column.

    Args:
        failed: called with what went wrong in a thread.
        pins: what keeps Reports to compare them.
        say: told what was pinned.
    """

    def __init__(
        self, look: Look, failed: Callable[[BaseException], None], pins: Pins | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._text = look.text()
        self._button = look.button("Simulate too")
        self._button.add_class("pl-action")
        self._button.add_class("pl-simulate")
        self._button.tooltip = "Run the same code on fake tensors, and add its column"
        self._button.on_click(lambda _: self._clicked())
        self._simulation = Simulation(self._told, failed, self._ended)
        self._reports: list[Report] = []
        self._pin = PinButton(look, pins, lambda: self._reports, say, "Pin these")
        self.widget = widgets.HBox(
            [self._text, self._button, self._pin.widget],
            layout=widgets.Layout(align_items="flex-start"),
        )
        self.widget.add_class("pl-compared")
        self.clear()

    def clear(self) -> None:
        """Forgets the last run."""
        self._simulation.stop()
        self._reports = []
        self._button.disabled = True
        self._pin.refresh()
        self._text.value = f'<div class="pl-muted">{PROMISE}</div>'

    def show(self, predicted: Report | None, measured: Report) -> None:
        """Compares a run with its prediction; without one there is nothing to compare."""
        if predicted is None or not measured.steps:
            return
        self._reports = [predicted, measured]
        self._button.disabled = False
        self._pin.refresh()
        self._text.value = comparison(self._reports)

    def stop(self) -> None:
        """Ends a simulation that is under way."""
        self._simulation.stop()

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the simulation."""
        self._simulation.wait(timeout)

    def _clicked(self) -> None:
        if self._simulation.running:
            self._simulation.stop()
            self._button.disabled = True
            return
        reports = self._reports
        if len(reports) != 2:
            return
        predicted, measured = reports
        rank = compared_ranks(reports)[0].rank

        def add(simulated: Report) -> None:
            if self._reports is reports:
                self._reports = [predicted, simulated, measured]
                self._text.value = comparison(self._reports, unfolded=True)

        # First, since a small simulation is over before this returns.
        self._button.description = "Stop simulating"
        self._simulation.start(measured.model, measured.plan, add, [rank])

    def _told(self, done: int, total: int, words: str) -> None:
        self._button.tooltip = f"{words}: {done} of {total}"

    def _ended(self) -> None:
        self._button.description = "Simulate too"
        self._button.tooltip = "Run the same code on fake tensors, and add its column"
        self._button.disabled = len(self._reports) != 2


def comparison(reports: list[Report], unfolded: bool = False) -> str:
    """One line with the peaks, and behind it a table of all that differs or might.

    Args:
        reports: of one plan; the first is the prediction, the last what was measured.
    """
    predicted, measured = reports[0], reports[-1]
    one, other = (rank.peak.peak_bytes for rank in compared_ranks([predicted, measured]))
    apart = f"{100 * (other - one) / one:+.1f} %".replace("-", "−") if one else "no prediction"
    words = (
        f"Peak {predicted.source} {in_words(one)}, {measured.source} {in_words(other)} ({apart}): "
        "why does it differ?"
    )
    return (
        f"<details{' open' if unfolded else ''}><summary>{html.escape(words)}</summary>"
        f"{_table(reports)}</details>"
    )


def _table(reports: list[Report]) -> str:
    causes = {d.category: d.cause for d in differences(reports[0], reports[-1])}
    names = [report.source for report in reports]
    lines = []
    for section in compare(reports):
        rows = [row for row in section.rows if row.unit == "bytes"]
        if not rows or section.title == "The whole":
            continue
        at_peak = section.title.startswith("Memory")
        lines.append(_head(section.title, names))
        lines += [_line(row, causes.get(row.name, "") if at_peak else "") for row in rows]
    return f'<div class="pl-scroll"><table class="pl-table">{"".join(lines)}</table></div>'


def _head(title: str, names: Sequence[str]) -> str:
    columns = "".join(f"<th>{name}</th>" for name in [*names, f"{names[-1]} − {names[0]}"])
    first, last = f'<th class="pl-text">{html.escape(title)}, bytes</th>', '<th class="pl-text">why'
    return f"<tr>{first}{columns}{last}</th></tr>"


def _line(row: Row, cause: str) -> str:
    cells = ["–" if value is None else f"{value:,.0f}" for value in row.values]
    first, last = row.values[0], row.values[-1]
    cells.append(_signed(last - first) if first is not None and last is not None else "–")
    numbers = "".join(f"<td>{cell}</td>" for cell in cells)
    css = ' class="pl-differs"' if first != last else ""
    name = f'<td class="pl-text">{html.escape(row.name)}</td>'
    return f'<tr{css}>{name}{numbers}<td class="pl-text">{html.escape(cause)}</td></tr>'


def _signed(difference: float) -> str:
    return f"{difference:+,.0f}".replace("-", "−") if difference else "0"
