"""`parallab compare`: Reports side by side, and where the first two differ."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from parallab.cli.arguments import (
    Commands,
    add_command,
    check_outputs,
    figure_target,
    json_target,
    writable,
    write_json,
)
from parallab.compare import collection, export
from parallab.compare.changes import explain
from parallab.compare.collection import Named
from parallab.compare.side_by_side import Difference, Row, Section, compare, differences
from parallab.report import Report
from parallab.tables import aligned
from parallab.units import percent

COLUMNS = 100


def add_commands(commands: Commands) -> None:
    """Registers the command of this file."""
    parser = add_command(
        commands, "compare", compare_files, "saved Reports side by side, and what changed"
    )
    parser.add_argument("reports", nargs="+", metavar="REPORT.json",
                        help="what `--json` or `Report.save` wrote, or the panel, one or several "
                             "in a file; the first two are A and B")  # fmt: skip
    parser.add_argument("--json", type=json_target, metavar="FILE",
                        help="write the comparison; - is standard output, alone there")  # fmt: skip
    parser.add_argument("--plot", type=figure_target, metavar="FILE.png",
                        help="draw memory, bytes, time and bubble side by side")  # fmt: skip
    parser.add_argument("--html", type=writable, metavar="FILE",
                        help="write one page with words, pictures and tables")  # fmt: skip
    parser.add_argument("--csv", type=writable, metavar="FILE",
                        help="write a table with a row for each rank")  # fmt: skip


def compare_files(args: argparse.Namespace) -> int:
    """Prints the comparison of saved Reports, or writes it."""
    check_outputs(args)
    _spare_reports(args)
    loaded = [(file, collection.load(file)) for file in args.reports]
    # A Report alone in its file goes by the file, in pictures without its folder.
    names = [file if len(pins) == 1 else pin.name for file, pins in loaded for pin in pins]
    named = collection.named(pin for _, pins in loaded for pin in pins)
    reports = [report for _, report in named]
    sections = compare(reports)
    found = differences(*reports[:2]) if len(reports) > 1 else []
    _write(args, named)
    if args.json != "-":
        print(comparison_text(names, reports, sections, found))
    if args.json:
        data = {
            "reports": [
                {"file": name, "source": r.source, "model": r.model.name, "plan": r.plan.to_dict()}
                for name, r in zip(names, reports, strict=True)
            ],
            "sections": [asdict(section) for section in sections],
            "differences": [asdict(difference) for difference in found],
        }
        write_json(json.dumps(data), args.json)
    return 0


def _spare_reports(args: argparse.Namespace) -> None:
    """Refuses to write over what is compared."""
    read = {Path(file).resolve() for file in args.reports}
    for flag in ("json", "plot", "html", "csv"):
        name = getattr(args, flag)
        if name and Path(name).resolve() in read:
            args.parser.error(f"--{flag} {name} would overwrite a Report that is compared.")


def _write(args: argparse.Namespace, named: list[Named]) -> None:
    """The files that were asked for; drawing is loaded for those only."""
    pair = (0, 1) if len(named) > 1 else None
    if args.plot:
        from parallab.plots.compare import plot_comparison

        plot_comparison(named, marks=export.marks(len(named), pair)).savefig(args.plot)
    for kind in ("html", "csv"):
        if path := getattr(args, kind):
            Path(path).write_bytes(export.to_file(kind, named, pair))


def comparison_text(
    names: list[str], reports: list[Report], sections: list[Section], found: list[Difference]
) -> str:
    """The whole comparison as text; bytes to the byte, since that is what is compared."""
    letters = [chr(ord("A") + i) for i in range(len(reports))]
    lines = [
        f"{letter}  {name}: {report.source}, {report.model.name}, {report.plan}"
        for letter, name, report in zip(letters, names, reports, strict=True)
    ]
    parts = ["\n".join(lines)]
    if len(reports) > 1:
        parts.append("From A to B\n" + "\n".join(_paragraphs(*reports[:2])))
    for section in sections:
        rows = [(row.name, *(_cell(row, i) for i in range(len(reports)))) for row in section.rows]
        parts.append(aligned((section.title, *letters), rows))
    if len(reports) > 1:
        parts.append(_why(letters, found))
    return "\n\n".join(parts)


def _paragraphs(first: Report, second: Report) -> Iterator[str]:
    """What changed, in words; the lines of a matter below one another."""
    for paragraph in explain(first, second):
        yield from textwrap.wrap(
            " ".join(paragraph.sentences), COLUMNS, initial_indent=f"{paragraph.title:15}",
            subsequent_indent=" " * 15, break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip


def _why(letters: list[str], found: list[Difference]) -> str:
    if not found:
        return "A and B agree at their peaks in every category, to the byte."
    rows = [(d.category, f"{d.second_bytes - d.first_bytes:+,}", d.cause or "–") for d in found]
    title = f"At its peak {letters[1]} holds, beyond {letters[0]}, in bytes"
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    lines = [f"{name.ljust(widths[0])}  {by.rjust(widths[1])}  {why}" for name, by, why in rows]
    return "\n".join([title, *lines])


def _cell(row: Row, i: int) -> str:
    value = row.values[i]
    if value is None:
        return "–"
    match row.unit:
        case "bytes":
            return f"{value:,.0f}"
        case "seconds":
            return f"{value * 1e3:,.1f} ms"
        case "share":
            return percent(value, 1)
    return f"{value:,.4f}" if value < 100 else f"{value:,.0f}"
