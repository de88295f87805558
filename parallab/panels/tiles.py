"""The main figures of a run, above its plots."""

from __future__ import annotations

import html
from dataclasses import replace

from parallab.plots.style import in_words, three_digits
from parallab.plots.timeline import bubble_words
from parallab.predict.bubble import bubble
from parallab.report import Report
from parallab.units import percent

# Value, what it is, and an explanation where that is too short.
Figure = tuple[str, str, str]


def tiles(
    report: Report, payload: bool, last: int | None = None, predicted: Report | None = None
) -> str:
    """The main figures as HTML.

    Args:
        payload: communication as payload instead of bytes on the wire.
        last: the bubble of the last so many steps only, since it is read off every pass.
        predicted: what stands for memory and communication until the first step has run.
    """
    known = report if report.steps or predicted is None else predicted
    sent = known.payload_bytes if payload else known.wire_bytes
    seconds, rate = report.step_seconds, report.tokens_per_second
    kind = "payload" if payload else "sent"
    peak, when = "highest peak", ""
    if known is predicted:
        peak, when = "predicted peak", ", predicted"
    return _as_html([
        (in_words(known.peak_bytes) if known.steps else "–", peak,
         "The most memory that any device holds in any step"),
        (in_words(sent) if known.steps else "–", f"{kind} per step{when}", ""),
        (f"{three_digits(1000 * seconds)} ms" if seconds else "–", "per step, untraced", ""),
        (three_digits(rate) if rate else "–", "tokens per second", ""),
        *_bubble(report, last),
    ])  # fmt: skip


def _bubble(report: Report, last: int | None) -> list[Figure]:
    """How idle a pipeline's ranks were, beside the formula's figure; none without a pipeline."""
    formula = bubble(report.plan)
    if formula is None:
        return []
    if last is not None:
        ranks = [replace(rank, steps=rank.steps[-last:]) for rank in report.ranks]
        report = replace(report, ranks=ranks)
    measured = report.bubble
    value = percent(measured.idle_of_total) if measured else "–"
    name = f"idle (formula {percent(formula.idle_of_total)})"
    return [(value, name, bubble_words(measured, formula) if measured else "")]


def _as_html(figures: list[Figure]) -> str:
    cells = "".join(
        f'<div class="pl-tile" title="{html.escape(more or name)}"><b>{html.escape(value)}</b>'
        f"<span>{html.escape(name)}</span></div>"
        for value, name, more in figures
    )
    return f'<div class="pl-tiles">{cells}</div>'
