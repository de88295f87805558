"""Reports by name: several of them in one file, and reading what people saved."""

from __future__ import annotations

import glob
import json
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from parallab.catalog import strategy
from parallab.compare.side_by_side import compare
from parallab.errors import ReportError
from parallab.report import CATEGORIES, OPERATIONS, Report, Step

SCHEMA = "parallab.reports/1"
# A Report of eight ranks and a hundred steps has some megabytes.
MAX_BYTES = 64 * 2**20
MIB = 2**20
_AXES = {"dp", "pp", "tp", "world"}


class Named(NamedTuple):
    """A Report, and what it is called."""

    name: str
    report: Report


def short_name(report: Report) -> str:
    """What a Report is called where nobody gave it a name.

    That is "zero3 ×4, mini", "3d ×2×2×2 1f1b, nano", or "ddp ×8, gpt2, predicted".
    """
    plan = report.plan
    axes = strategy(plan.strategy).axes
    degrees = [getattr(plan, axis) for axis in axes] if len(axes) > 1 else [plan.devices]
    split = f" ×{'×'.join(map(str, degrees))}" if axes else ""
    schedule = f" {plan.schedule}" if plan.pp > 1 and plan.strategy != "mp" else ""
    words = f"{plan.strategy}{split}{schedule}, {report.model.name}"
    return words if report.source == "measured" else f"{words}, {report.source}"


def unique(name: str, taken: Collection[str]) -> str:
    """The name, with a number where it is taken.

    >>> unique("pp ×4, mini", {"pp ×4, mini", "pp ×4, mini (2)"})
    'pp ×4, mini (3)'
    """
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name} ({number})"
    return found


def named(reports: Iterable[tuple[str, Report]]) -> list[Named]:
    """The same with every name once."""
    found: dict[str, Named] = {}
    for name, report in reports:
        free = unique(name, found)
        found[free] = Named(free, report)
    return list(found.values())


def to_json(reports: Sequence[Named]) -> str:
    """One Report as its own file has it, several as a collection."""
    if len(reports) == 1:
        return json.dumps(reports[0].report.to_dict(), allow_nan=False)
    rows = [{"name": name, "report": report.to_dict()} for name, report in reports]
    return json.dumps({"schema": SCHEMA, "reports": rows}, allow_nan=False)


def load(path: str | Path) -> list[Named]:
    """The Reports in a file: one, called as the file, or a collection.

    Raises:
        ReportError: no such file, too large, or nothing in it that can be compared.
    """
    path = Path(path)
    try:
        found = path.stat()
        check_size(str(path), found.st_size)
        # A shell's <(command) has no name of its own, so nobody could wait for its writer in vain.
        if stat.S_ISFIFO(found.st_mode) and path.resolve().exists():
            raise ReportError(f"{path} is a pipe, not a file.")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)  # a device has no size, and no end
    except ReportError:
        raise
    except (OSError, ValueError) as error:  # a zero byte in its name
        reason = getattr(error, "strerror", None) or error
        raise ReportError(f"{path} cannot be read: {reason}.") from error
    return read(str(path), data)


def read(file: str, data: bytes) -> list[Named]:
    """The same of a file's content.

    Raises:
        ReportError: see `load`.
    """
    check_size(file, len(data))
    if not data.strip():
        raise ReportError(f"{file} is empty.")
    try:
        content = json.loads(data)
    except UnicodeDecodeError:
        raise ReportError(f"{file} is no text file, so it holds no Report.") from None
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{file} is not JSON, so it holds no Report: {error}.") from error
    try:
        if isinstance(content, dict) and content.get("schema") == SCHEMA:
            return named((str(row["name"]), _checked(row["report"])) for row in content["reports"])
        return [Named(Path(file).stem, _checked(content))]
    except ReportError as error:
        raise ReportError(f"{file}: {error}") from error
    except (KeyError, TypeError) as error:
        raise ReportError(f"{file} is a damaged collection of Reports: {error!r}.") from error


def check_size(file: str, size_bytes: int) -> None:
    """Refuses what is too large to be Reports.

    Raises:
        ReportError: with both sizes.
    """
    if size_bytes > MAX_BYTES:
        raise ReportError(
            f"{file} has {size_bytes / MIB:,.0f} MiB, and files of Reports are read up to "
            f"{MAX_BYTES // MIB} MiB: save fewer steps, or fewer Reports in one file."
        )


def paths(words: str) -> list[Path]:
    """The files that a path, a folder or a pattern such as runs/*.json names, in order.

    Raises:
        ReportError: there are none.
    """
    try:
        path = Path(words.strip()).expanduser()
        folder = path.is_dir()
        if folder:
            found = sorted(path.glob("*.json"))
        elif glob.has_magic(str(path)) and not path.exists():
            root = Path(path.anchor)
            found = sorted(root.glob(str(path.relative_to(root))))
        else:
            return [path]
    except (OSError, ValueError, RuntimeError) as error:  # too long, a zero byte, nobody's home
        reason = str(getattr(error, "strerror", None) or error).rstrip(".")
        raise ReportError(f"{words.strip()[:80]!r} is no path here: {reason}.") from None
    if not found:
        raise ReportError(f"There is no {'.json file in' if folder else 'file'} {str(path)!r}.")
    return found


def _checked(data: object) -> Report:
    """A Report whose figures can be computed: whatever else a file may hold would fail later."""
    report = Report.from_dict(data)
    if not report.steps:
        raise ReportError("This Report has no finished step, so it has no figures to compare.")
    try:
        _check_values(report)
        compare([report])
    except (TypeError, KeyError, ValueError, AttributeError, ArithmeticError) as error:
        raise ReportError(f"This Report is damaged: {error!r}.") from error
    return report


def _check_values(report: Report) -> None:
    """What figures are added up from, sorted by and drawn from."""
    if not isinstance(report.environment.get("represents", {}), dict):
        raise TypeError("represents does not say for how many ranks each one stands")
    for rank in report.ranks:
        amounts: list[Any] = [rank.rank, *rank.coords.values()]
        words: list[Any] = [rank.device, rank.host]
        wrong: list[Any] = [axis for axis in rank.coords if axis not in _AXES]
        for step in rank.steps:
            amounts += _amounts(step)
            words += [row.phase for row in step.communication] + [s.kind for s in step.spans]
            wrong += _unknown(step)
        wrong += [n for n in amounts if not _is_amount(n)]
        wrong += [word for word in words if not isinstance(word, str)]
        if wrong:
            raise TypeError(f"{wrong[0]!r:.60} stands where it cannot, in rank {rank.rank!r:.20}")


def _is_amount(value: Any) -> bool:
    """A number that can be counted with; NaN and infinity compare as if they were not small."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63


def _amounts(step: Step) -> Iterator[Any]:
    """Whatever has to be a number."""
    memory = step.memory
    yield from (step.step, step.seconds or 0, step.begin or 0, memory.peak_bytes)
    yield from (*memory.at_peak.values(), *memory.states.values(), *step.traffic.values())
    for phase in memory.phases:
        yield from (phase.peak_bytes, *phase.by_category.values())
    for series in (memory.series, memory.marks):
        for values in series.values():
            yield from values
    for row in step.communication:
        yield from (row.count, row.payload_bytes, row.wire_bytes, row.seconds or 0)
    for span in step.spans:
        yield from (span.stage, span.micro_batch, span.start, span.end)


def _unknown(step: Step) -> Iterator[Any]:
    """What no plot has a name for, and series that do not go together."""
    for series in (step.memory.series, step.memory.marks):
        if len(set(map(len, series.values()))) > 1:
            yield "a series that is longer than another"
    yield from step.memory.series.keys() - {*CATEGORIES, "seconds"}
    for row in step.communication:
        if row.op not in OPERATIONS or row.axis not in _AXES:
            yield f"{row.op} on {row.axis}"
