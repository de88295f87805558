"""`parallab compare`: Reports side by side, and where the first two differ."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from parallab.cli.arguments import Commands, add_command, json_target
from parallab.cli.tables import table
from parallab.compare import Difference, Row, Section, compare, differences
from parallab.errors import ReportError
from parallab.report import Report


def add_commands(commands: Commands) -> None:
    """Registers the command of this file."""
    parser = add_command(
        commands, "compare", compare_files, "saved Reports side by side, differences by category"
    )
    parser.add_argument("reports", nargs="+", metavar="REPORT.json",
                        help="what `--json` or `Report.save` wrote")  # fmt: skip
    parser.add_argument("--json", type=json_target, metavar="FILE",
                        help="write the comparison; - is standard output, alone there")  # fmt: skip


def compare_files(args: argparse.Namespace) -> int:
    """Prints the comparison of saved Reports, or writes it as JSON."""
    reports = [Report.load(name) for name in args.reports]
    for name, report in zip(args.reports, reports, strict=True):
        if not report.steps:
            raise ReportError(f"{name} has no finished step, so it has no figures to compare.")
    sections = compare(reports)
    found = differences(*reports[:2]) if len(reports) > 1 else []
    if args.json != "-":
        print(comparison_text(args.reports, reports, sections, found))
    if args.json:
        data = {
            "reports": [
                {"file": name, "source": r.source, "model": r.model.name, "plan": r.plan.to_dict()}
                for name, r in zip(args.reports, reports, strict=True)
            ],
            "sections": [asdict(section) for section in sections],
            "differences": [asdict(difference) for difference in found],
        }
        if args.json == "-":
            print(json.dumps(data))
        else:
            Path(args.json).write_text(json.dumps(data), encoding="utf-8")
    return 0


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
    for section in sections:
        rows = [(row.name, *(_cell(row, i) for i in range(len(reports)))) for row in section.rows]
        parts.append(table((section.title, *letters), rows))
    if len(reports) > 1:
        parts.append(_why(letters, found))
    return "\n\n".join(parts)


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
            return f"{value:.1%}"
    return f"{value:,.4f}" if value < 100 else f"{value:,.0f}"
