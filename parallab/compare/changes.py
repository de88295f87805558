"""What changed between two Reports, in plain words: what was asked for, and what that did.

A and B are the two, in this order; an arrow leads from A's figure to B's.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from parallab.compare.side_by_side import (
    Row,
    Section,
    compare,
    compared_ranks,
    differences,
    ranks_in_words,
)
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.predict.bubble import bubble
from parallab.report import Report
from parallab.units import percent

LABELS = {
    "zero": "ZeRO stage", "seq": "sequence", "micro_batches": "micro-batches",
    "sequence_parallel": "sequence parallel", "clip": "clipped to",
}  # fmt: skip
# What else a measured figure depends on.
SURROUNDINGS = {
    "torch": "torch", "backend": "backend", "hosts": "hosts", "cores": "cores",
    "threads": "threads of a rank", "text": "text", "seed": "seed",
}  # fmt: skip
# With fewer steps, how far they lie apart says little.
MANY_STEPS = 5
KIB = 2**10

Kind = Literal["payload_bytes", "wire_bytes"]


@dataclass(frozen=True)
class Paragraph:
    """Sentences about one matter."""

    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Pace:
    """How long a step takes, and how far apart the steps are.

    Attributes:
        low, high: half of the steps lie between these.
        count: so many steps.
    """

    median: float
    low: float
    high: float
    count: int


def explain(first: Report, second: Report) -> list[Paragraph]:
    """What differs, a paragraph for each matter that there is something to say about."""
    found = {
        "Plan": _plan(first.plan, second.plan),
        "Model": _model(first.model, second.model),
        "Source": _source(first, second),
        "Memory": _memory(first, second),
        "Communication": _communication(first, second),
        "Time": _time(first, second),
        "Idle": _idle(first, second),
    }
    return [Paragraph(title, tuple(words)) for title, words in found.items() if words]


def sections(reports: Sequence[Report]) -> list[Section]:
    """The figures side by side, of memory and bytes what changed most from A to B first."""
    memory, *_, whole = compare(reports)
    peak, *categories = memory.rows
    sent = [_sent(reports, kind) for kind in ("payload_bytes", "wire_bytes")]
    found = [
        Section(memory.title, (peak, *sorted(categories, key=_change))),
        Section("Payload of the busiest rank per step", sent[0]),
        Section("On the wire from the busiest rank per step, ideal rings", sent[1]),
        whole,
    ]
    return [section for section in found if section.rows]


def pace(report: Report) -> Pace | None:
    """How long a step takes; None where nothing ran."""
    seconds = report.timed_seconds
    if not seconds:
        return None
    low, median, high = (
        statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    )
    return Pace(median, low, high, len(seconds))


def amount(size_bytes: float) -> str:
    """Bytes in words, to the byte where they are few."""
    from parallab.plots.style import in_words

    if 0 < size_bytes < KIB:
        return f"{size_bytes:,.0f} byte{'s' if size_bytes > 1 else ''}"
    return in_words(size_bytes)


def signed(difference: float, words: Callable[[float], str] = amount) -> str:
    """A difference with its sign.

    >>> signed(-12), signed(3), signed(0)
    ('−12 bytes', '+3 bytes', '0')
    """
    sign = "+" if difference > 0 else "−" if difference < 0 else ""
    return f"{sign}{words(abs(difference))}"


def relative(first: float, second: float) -> str:
    """By how much the second is more or less than the first; empty where that is no number.

    >>> relative(200, 150), relative(1, 30), relative(0, 5), relative(100_000, 100_001)
    ('−25 %', '30 times', '', 'below 0.1 %')
    """
    if not first or not second:
        return ""
    if second / first >= 10:
        return f"{second / first:,.0f} times"
    change = 100 * (second - first) / first
    if abs(change) < 0.05:
        return "below 0.1 %" if change else "0 %"
    return f"{change:+.{0 if abs(change) >= 9.95 else 1}f} %".replace("-", "−")


def milliseconds(seconds: float) -> str:
    """A time in ms, to three digits that count."""
    return f"{1e3 * seconds:,.{0 if seconds >= 0.1 else 1 if seconds >= 0.01 else 2}f} ms"


# What was asked for.


def _plan(first: Plan, second: Plan) -> list[str]:
    if first == second:
        return [f"The plan is the same: {first}."]
    names = [field.name for field in fields(Plan)]
    changed = _arrows(
        (LABELS.get(name, name), _setting(first, name), _setting(second, name)) for name in names
    )
    return [f"{_capital(', '.join(changed))}.", "The rest of the plan is the same."]


def _setting(plan: Plan, name: str) -> str:
    value = getattr(plan, name)
    if name == "schedule" and (plan.pp == 1 or plan.strategy == "mp"):
        return "none"
    return {None: "none", True: "on", False: "off"}[value] if _is_flag(value) else str(value)


def _is_flag(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _model(first: Model, second: Model) -> list[str]:
    if first == second:
        return [f"The model is the same: {first}."]
    names = [field.name for field in fields(Model) if field.name != "name"]
    changed = _arrows((n, str(getattr(first, n)), str(getattr(second, n))) for n in names)
    return [f"{first} → {second}: {', '.join(changed) or 'the same sizes'}."]


def _source(first: Report, second: Report) -> list[str]:
    if first.source != second.source:
        return [f"A is {first.source}, B is {second.source}."]
    words = [f"Both are {first.source}."]
    one, other = first.environment, second.environment
    changed = _arrows(
        (label, _listed(one[key]), _listed(other[key]))
        for key, label in SURROUNDINGS.items()
        if key in one and key in other
    )
    if changed and first.source == "measured":
        words.append(f"They did not run alike: {', '.join(changed)}.")
    return words


def _listed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _arrows(settings: Iterable[tuple[str, str, str]]) -> list[str]:
    """What differs, with its name."""
    return [f"{name} {before} → {after}" for name, before, after in settings if before != after]


# What that did.


def _memory(first: Report, second: Report) -> list[str]:
    ranks = compared_ranks([first, second])
    one, other = (rank.peak for rank in ranks)
    numbers = [rank.rank for rank in ranks]
    same = numbers[0] == numbers[1]
    if one.peak_bytes == other.peak_bytes:
        on = ranks_in_words([first, second])
        words = [f"The same peak to the byte, {amount(one.peak_bytes)} on {on}."]
    else:
        which = f"Rank {numbers[0]} peaks at" if same else "The fullest rank peaks at"
        before, after = (f"{amount(memory.peak_bytes)}{'' if same else f' (rank {number})'}"
                         for memory, number in zip((one, other), numbers, strict=True))  # fmt: skip
        words = [f"{which} {before} → {after}: {_by(one.peak_bytes, other.peak_bytes)}."]
    unknown = [name for name, memory in (("A", one), ("B", other)) if not memory.at_peak]
    if unknown:
        return [*words, f"Of {' and '.join(unknown)} only the total is known: no step was traced."]
    found = differences(first, second)
    if not found:
        return [*words, "Every category is the same, to the byte."]
    most, *others = found
    words.append(
        f"What changes most is {most.category}: {amount(most.first_bytes)} → "
        f"{amount(most.second_bytes)}, {signed(most.second_bytes - most.first_bytes)}."
    )
    if others:
        rest = (f"{d.category} {signed(d.second_bytes - d.first_bytes)}" for d in others)
        words.append(f"Then {', '.join(rest)}.")
    return words + [f"{_capital(d.category)}: {d.cause}." for d in found if d.cause]


def _communication(first: Report, second: Report) -> list[str]:
    if not (first.payload_bytes or second.payload_bytes):
        return ["Nothing is sent."]
    words = []
    for name, one, other in (
        ("In a step, the busiest rank's payload is", first.payload_bytes, second.payload_bytes),
        ("On the wire, ideal rings need", first.wire_bytes, second.wire_bytes),
    ):
        change = f"{amount(one)} → {amount(other)}: {_by(one, other)}"
        words.append(f"{name} {change if one != other else f'the same {amount(one)}'}.")
    changed = [row for row in _sent([first, second], "payload_bytes")[1:] if row.differs]
    if changed:
        words.append(f"Payload by axis: {'; '.join(map(_in_words, changed))}.")
    return words


def _in_words(row: Row) -> str:
    one, other = (value or 0 for value in row.values)
    if not one:
        return f"{row.name} {amount(other)} is new"
    if not other:
        return f"{row.name} {amount(one)} is gone"
    return f"{row.name} {amount(one)} → {amount(other)} ({_by(one, other)})"


def _time(first: Report, second: Report) -> list[str]:
    one, other = pace(first), pace(second)
    if one is None or other is None:
        without = [(name, report.source) for name, report, known
                   in (("A", first, one), ("B", second, other)) if known is None]  # fmt: skip
        which = " and ".join(f"{name} is {source}" for name, source in without)
        return [f"{which}, and only steps that ran have taken time: there is none to compare."]
    before, after = milliseconds(one.median), milliseconds(other.median)
    words = [f"A step takes {before} → {after}: {relative(one.median, other.median)}."]
    words += _spread(one, other)
    if first.plan.batch * first.plan.seq != second.plan.batch * second.plan.seq:
        rates = [report.tokens_per_second or 0 for report in (first, second)]
        words.append(f"That is {rates[0]:,.0f} → {rates[1]:,.0f} tokens per second.")
    slowed = [n for n, report in (("A", first), ("B", second)) if not _has_plain_steps(report)]
    if slowed:
        words.append(f"{' and '.join(slowed)} {'has' if len(slowed) == 1 else 'have'} no untraced "
                     "step after the first: those that are timed are slower than others would be."
                     )  # fmt: skip
    if any(rank.device == "cpu" for report in (first, second) for rank in report.ranks):
        words.append("Times on CPU engines say little about GPUs.")
    return words


def _spread(one: Pace, other: Pace) -> list[str]:
    """How far the steps of each lie apart, and whether the difference stands out from that."""
    each = [f"{milliseconds(p.low)} to {milliseconds(p.high)} of {p.count}" for p in (one, other)]
    words = [f"The middle half of the timed steps: {each[0]} → {each[1]}."]
    if one.low <= other.high and other.low <= one.high:
        words.append("These overlap: the difference is within the noise.")
    elif min(one.count, other.count) < MANY_STEPS:
        words.append("So few steps are a hint only: run ten or more to be sure.")
    return words


def _has_plain_steps(report: Report) -> bool:
    ranks = report.ranks
    return any(not any(r.steps[i].traced for r in ranks) for i in range(1, report.steps))


def _idle(first: Report, second: Report) -> list[str]:
    formulas = [bubble(report.plan) for report in (first, second)]
    found = [report.bubble for report in (first, second)]
    words = []
    for name, formula, real in zip("AB", formulas, found, strict=True):
        if formula is not None:
            planned = percent(formula.idle_of_total)
            seen = f"{percent(real.idle_of_total)} of their time, {planned}" if real else planned
            words.append(f"{name}'s pipeline ranks wait {seen} by the schedule.")
        elif any(formulas):
            words.append(f"{name} has no pipeline.")
    return words


# Figures.


def _sent(reports: Sequence[Report], kind: Kind) -> tuple[Row, ...]:
    """Bytes of each Report's busiest rank: their sum, then what changed most first."""
    totals = [report.communication() for report in reports]
    keys = sorted({key for rows in totals for key in rows if key[0] != "recv"})
    rows = [
        Row(f"{op.replace('_', '-')} on {axis}", "bytes",
            tuple(rows[op, axis][kind] if (op, axis) in rows else 0 for rows in totals))
        for op, axis in keys
    ]  # fmt: skip
    if not any(value for row in rows for value in row.values):
        return ()
    whole = Row("sent in all", "bytes", tuple(getattr(report, kind) for report in reports))
    return (whole, *sorted(rows, key=_change))


def _change(row: Row) -> float:
    """For sorting: what changes most from A to B first, else in the order that it has."""
    one, other = row.values[0], row.values[min(1, len(row.values) - 1)]
    return -abs((other or 0) - (one or 0))


def _by(first: float, second: float) -> str:
    share = relative(first, second)
    return f"{signed(second - first)}{f', {share}' if share else ''}"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
