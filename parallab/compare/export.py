"""Reports to take along: a table for spreadsheets, a picture, and one page that needs nothing else.

The page has no scripts and asks for nothing: its styles and pictures are in it. It is light or dark
as the reader's browser is, and prints on paper.
"""

from __future__ import annotations

import base64
import csv
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from html import escape
from typing import Any

import parallab
from parallab.compare.changes import explain, milliseconds, pace, relative, sections, signed
from parallab.compare.collection import Named, to_json
from parallab.compare.side_by_side import Row, Section
from parallab.plan import Plan
from parallab.report import CATEGORIES, Rank, Report, total_communication
from parallab.units import percent

AXES = ("dp", "pp", "tp", "world")
# Of more Reports than these, each one's own picture would make the page too heavy to send.
MOST_PICTURES = 12
PICTURE_DPI = 110

SOURCES = (
    "Every figure is of the source that is named with its run: measured on real ranks, simulated "
    "on fake ones, or predicted by formulas."
)

CSS = """
:root { color-scheme: light dark; --ink: #222; --muted: #666; --line: #ddd; --paper: #fff;
  --box: #f4f4f4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e4e4; --muted: #a5a5a5; --line: #444; --paper: #1b1b1b; --box: #262626; }
  img { filter: invert(.89) hue-rotate(180deg) saturate(1.15); }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 980px; margin: 0 auto; padding: 20px 24px 40px; }
h1 { font-size: 22px; margin: 0; } h2 { font-size: 17px; margin: 28px 0 6px; }
h3 { font-size: 15px; margin: 22px 0 4px; }
.muted { color: var(--muted); font-size: 13px; }
img { width: 100%; border-radius: 4px; display: block; margin: 8px 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; line-height: 1.45; margin: 4px 0 14px;
  font-variant-numeric: tabular-nums; }
td, th { padding: 2px 14px 2px 0; text-align: right; white-space: nowrap; color: var(--muted);
  vertical-align: top; }
th { color: var(--ink); font-weight: 600; border-bottom: 1px solid var(--line); padding-top: 8px; }
.pl-text { text-align: left; } td.pl-wide { white-space: normal; }
.pl-differs td { color: var(--ink); }
dl { margin: 8px 0; display: grid; grid-template-columns: 9em minmax(0, 1fr); gap: 4px 10px;
  background: var(--box); border-radius: 4px; padding: 8px 12px; }
dt { font-weight: 600; } dd { margin: 0; }
@media print {
  :root { --ink: #000; --muted: #444; --line: #bbb; --paper: #fff; --box: #f4f4f4; }
  body { font-size: 11px; max-width: none; padding: 0; } img { filter: none; }
  table { font-size: 10px; } td, th { padding-right: 8px; }
  figure, dl, tr { break-inside: avoid; } h2, h3 { break-after: avoid; }
}
figure { margin: 0; }
"""


def to_csv(reports: Sequence[Named]) -> str:
    """A row for each rank: the run it belongs to and its plan, its peak, and what it sends.

    Bytes sent are those of the last step; seconds and bubble are the run's, so the same on all its
    ranks. What is not known is empty.
    """
    rows = [_rank_row(name, report, rank) for name, report in reports for rank in report.ranks]
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def to_png(reports: Sequence[Named], pair: tuple[int, int] | None = None) -> bytes:
    """The Reports side by side as a picture.

    Args:
        pair: which of them are marked as A and B.
    """
    from parallab.plots.compare import plot_comparison

    return _drawn(plot_comparison(reports, marks=marks(len(reports), pair)), "png", 144)


def to_page(reports: Sequence[Named], pair: tuple[int, int] | None = None) -> str:
    """One HTML page with everything: what changed, the picture, tables, and each Report's own.

    Args:
        pair: which two are compared in words, the first as A; none with a single Report.
    """
    from parallab.plots.compare import plot_comparison

    two = f"{escape(reports[pair[0]].name)} and {escape(reports[pair[1]].name)}" if pair else ""
    title = f"{two} compared" if pair else escape(", ".join(name for name, _ in reports))
    figure = plot_comparison(reports, marks=marks(len(reports), pair))
    when = time.strftime("%Y-%m-%d %H:%M")
    parts = [
        f"<h1>{title}</h1>",
        f'<p class="muted">parallab {parallab.__version__}, {when}. {SOURCES}</p>',
        _overview(reports, pair),
        _picture(figure, "Memory by category, bytes by axis, time and bubble, side by side", "svg"),
    ]
    if pair:
        first, second = (reports[i] for i in pair)
        parts += ["<h2>What changed from A to B</h2>", in_words(first.report, second.report)]
        parts += ["<h2>In figures</h2>", difference_table(first.report, second.report)]
    if len(reports) > 2:
        parts += ["<h2>All side by side</h2>", side_by_side(reports)]
    parts.append("<h2>One by one</h2>" + "".join(map(_one, reports[:MOST_PICTURES])))
    if len(reports) > MOST_PICTURES:
        parts.append(f'<p class="muted">The first {MOST_PICTURES} of {len(reports)} are shown.</p>')
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{CSS}</style></head>\n<body>{''.join(parts)}</body></html>\n"
    )


MEDIA = {
    "png": "image/png", "csv": "text/csv", "json": "application/json", "html": "text/html",
}  # fmt: skip


def to_file(kind: str, reports: Sequence[Named], pair: tuple[int, int] | None = None) -> bytes:
    """What a file of that kind holds: a name of `MEDIA`."""
    match kind:
        case "png":
            return to_png(reports, pair)
        case "csv":
            return to_csv(reports).encode("utf-8-sig")  # else a spreadsheet guesses, wrongly
        case "json":
            return to_json(reports).encode()
    return to_page(reports, pair).encode()


def marks(count: int, pair: tuple[int, int] | None) -> list[str]:
    """A and B at their places, nothing elsewhere."""
    letters = dict(zip(pair or (), "AB", strict=False))
    return [letters.get(i, "") for i in range(count)]


# What the page is made of; the panel shows the same words and tables.


def in_words(first: Report, second: Report) -> str:
    """What changed, as a list of matters and sentences."""
    rows = (
        f"<dt>{escape(p.title)}</dt><dd>{escape(' '.join(p.sentences))}</dd>"
        for p in explain(first, second)
    )
    return f'<dl class="pl-changes">{"".join(rows)}</dl>'


def difference_table(first: Report, second: Report) -> str:
    """A, B and what lies between them, in bytes; what changed most comes first."""
    lines = []
    for section in sections([first, second]):
        lines.append(_head(section, ("A", "B", "B − A", "")))
        lines += [_difference_line(row) for row in section.rows]
    return _table(lines)


def side_by_side(reports: Sequence[Named]) -> str:
    """All Reports, a column each."""
    lines = []
    for section in sections([report for _, report in reports]):
        lines.append(_head(section, [name for name, _ in reports]))
        lines += [
            _line(row.name, [cell(row, value) for value in row.values], row.differs)
            for row in section.rows
        ]
    return _table(lines)


def cell(row: Row, value: float | None) -> str:
    """A figure as a table shows it: bytes to the byte."""
    if value is None:
        return "–"
    match row.unit:
        case "bytes":
            return f"{value:,.0f}"
        case "seconds":
            return milliseconds(value)
        case "share":
            return percent(value, 1)
    return f"{value:,.4f}" if value < 100 else f"{value:,.0f}"


def _difference_line(row: Row) -> str:
    first, second = row.values
    cells = [cell(row, first), cell(row, second), "–", ""]
    if first is not None and second is not None:
        words: Callable[[float], str] = lambda value: cell(row, value)  # noqa: E731
        points = row.unit == "share"
        cells[2] = signed(second - first, words).replace("%", "points") if points else signed(
            second - first, words)  # fmt: skip
        cells[3] = "" if points or first == second else relative(first, second)
    return _line(row.name, cells, row.differs)


def _head(section: Section, names: Sequence[str]) -> str:
    units = {row.unit for row in section.rows}
    title = f"{section.title}, bytes" if units == {"bytes"} else section.title
    columns = "".join(f"<th>{escape(name)}</th>" for name in names)
    return f'<tr><th class="pl-text">{escape(title)}</th>{columns}</tr>'


def _line(name: str, cells: Sequence[str], differs: bool) -> str:
    numbers = "".join(f"<td>{escape(text)}</td>" for text in cells)
    css = ' class="pl-differs"' if differs else ""
    return f'<tr{css}><td class="pl-text">{escape(name)}</td>{numbers}</tr>'


def _table(lines: Sequence[str]) -> str:
    return f'<div class="scroll pl-scroll"><table class="pl-table">{"".join(lines)}</table></div>'


def _overview(reports: Sequence[Named], pair: tuple[int, int] | None) -> str:
    head = "".join(f'<th class="pl-text">{name}</th>' for name in ("", "run", "source", "plan"))
    rows = "".join(
        f'<tr class="pl-differs"><td class="pl-text"><b>{mark}</b></td>'
        f'<td class="pl-text">{escape(name)}</td><td class="pl-text">{escape(report.source)}</td>'
        f'<td class="pl-text pl-wide">{escape(f"{report.model}: {report.plan}")}</td></tr>'
        for mark, (name, report) in zip(marks(len(reports), pair), reports, strict=True)
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


def _one(named: Named) -> str:
    """A Report's own picture, and what its figures depend on."""
    name, report = named
    facts = {k: v for k, v in report.environment.items() if isinstance(v, str | int | float)}
    where = ", ".join(f"{key} {value}" for key, value in facts.items())
    words = f"{report.source}; {report.steps} step{'s' if report.steps > 1 else ''}; {where}"
    return (
        f'<h3>{escape(name)}</h3><div class="muted">{escape(words.strip("; "))}</div>'
        + _picture(report.plot(), f"{name}: memory, timeline, communication, traffic, loss", "png")
    )


def _picture(figure: Any, words: str, kind: str) -> str:
    media = {"svg": "image/svg+xml", "png": "image/png"}[kind]
    data = base64.b64encode(_drawn(figure, kind, PICTURE_DPI)).decode()
    return f'<figure><img alt="{escape(words)}" src="data:{media};base64,{data}"></figure>'


def _drawn(figure: Any, kind: str, dpi: int) -> bytes:
    drawn = io.BytesIO()
    figure.savefig(drawn, format=kind, dpi=dpi)
    return drawn.getvalue()


def _plain(words: str) -> str:
    """Words that a spreadsheet does not take for a formula."""
    return f"'{words}" if words[:1] in tuple("=+-@") else words


def _rank_row(name: str, report: Report, rank: Rank) -> dict[str, Any]:
    plan, memory, timed = report.plan, rank.peak, pace(report)
    idle = report.bubble
    rows = total_communication(rank.steps[report.steps - 1].communication)
    sent = {
        f"{kind.removesuffix('_bytes')}_{axis}_bytes": sum(
            row[kind] for (op, at), row in rows.items() if at == axis and op != "recv"
        )
        for axis in AXES
        for kind in ("payload_bytes", "wire_bytes")
    }
    return {
        "run": _plain(name), "source": report.source, "model": _plain(report.model.name),
        "model_parameters": report.model.parameters,
        **{f"plan_{field.name}": getattr(plan, field.name) for field in fields(Plan)},
        "steps": report.steps,
        "step_seconds": timed.median if timed else None,
        "step_seconds_low_quartile": timed.low if timed else None,
        "step_seconds_high_quartile": timed.high if timed else None,
        "bubble_idle_of_total": idle.idle_of_total if idle else None,
        "rank": rank.rank,
        "stands_for_ranks": report.environment.get("represents", {}).get(str(rank.rank), 1),
        "device": rank.device,
        **{f"rank_{axis}": rank.coords.get(axis) for axis in AXES[:3]},
        "peak_bytes": memory.peak_bytes,
        **{f"peak_{c}_bytes": memory.at_peak.get(c, 0) if memory.at_peak else None
           for c in CATEGORIES},
        **sent,
    }  # fmt: skip
