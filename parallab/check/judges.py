"""How answers are held against measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from parallab.check.exercise import Judge, Verdict, right, wrong
from parallab.check.measure import measured
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.report import Report

MIB = 2**20
MOST = 1e300  # anything beyond is no float, or nearly none


@dataclass(frozen=True)
class Slip:
    """A wrong number that shows what was misunderstood.

    Attributes:
        value: computes that number.
        words: what it would be right for.
    """

    value: Callable[[], float]
    words: str


def number(
    measure: Callable[[], float],
    what: str,
    *,
    unit: str = "",
    within: float = 0.0,
    least: float = 0.0,
    slips: Sequence[Slip] = (),
    why: str = "",
    how: str = "measured",
) -> Judge:
    """An answer that is a number.

    Args:
        measure: the figure that counts.
        what: what it is: "the optimizer state of rank 0".
        unit: "bytes", "calls", "%".
        within: the relative difference that still counts as right.
        least: the smallest number that makes sense.
        slips: wrong numbers that deserve a sentence of their own.
        why: what to say besides when it is right.
        how: where the figure comes from, "predicted" where nothing runs.
    """

    def judge(answer: Any) -> Verdict:
        if getattr(answer, "shape", None) == ():  # a tensor or an array of one number
            answer = answer.item()
        if isinstance(answer, bool) or not isinstance(answer, Real):
            return wrong(f"The answer is a number, not {_kind(answer)}.")
        answer = int(answer) if isinstance(answer, Integral) else float(answer)
        if abs(answer) > MOST:
            return wrong(f"So large a number cannot be {what}.")
        if math.isnan(answer) or answer < least:
            return wrong(f"{answer!r} cannot be {what}; the answer is a number from {least:g} up.")
        found = measure()
        given = f"{answer:,} {unit}".strip()
        shown = f"{found:,.0f}" if found == int(found) else f"{found:,.3g}"
        if abs(answer - found) <= within * abs(found):
            return right(_sentences(f"{_capital(what)}: {shown} {unit}".strip(), why))
        for slip in slips:
            if abs(answer - slip.value()) <= within * abs(slip.value()):
                return wrong(f"{given} is not {what}. {slip.words}")
        return wrong(f"{given} is {_compared(answer, found, how)} {what}.")

    return judge


def _compared(answer: float, found: float, how: str) -> str:
    """How an answer compares, without giving the figure away."""
    ratio = answer / found if found else math.inf
    if ratio > 10:
        return f"more than ten times as much as was {how} for"
    if ratio > 1.5:
        return f"well above what was {how} for"
    if ratio > 1:
        return f"a little more than was {how} for"
    if ratio > 1 / 1.5:
        return f"a little less than was {how} for"
    if ratio > 1 / 10:
        return f"well below what was {how} for"
    return f"less than a tenth of what was {how} for"


Condition = Callable[[Report], tuple[bool, str]]


def ran(model: Model, plan: Plan, steps: int = 3) -> Report:
    """A plan run on real engines, every time anew: its times count too."""
    return measured(model, plan, steps, again=True)


def plan_for(
    model: Callable[[], Model],
    *conditions: Condition,
    report_of: Callable[[Model, Plan], Report] = ran,
    devices: int | None = None,
    most_devices: int = 4,
    keep: Mapping[str, Any] | None = None,
) -> Judge:
    """An answer that is a Plan.

    Args:
        model: what it has to train.
        conditions: each looks at the Report and says whether it holds, in a sentence.
        report_of: how the Report comes about; real engines run the plan unless given.
        devices: how many it has to use; up to `most_devices` unless given.
        keep: fields of the plan that the question fixes, such as batch and seq.
    """

    def judge(answer: Any) -> Verdict:
        if not isinstance(answer, Plan):
            return wrong(f"The answer is a plan such as pl.Plan('zero1'), not {_kind(answer)}.")
        if devices is not None and answer.devices != devices:
            return wrong(f"The plan is for {answer.devices:,} devices, and there are {devices:,}.")
        if devices is None and answer.devices > most_devices:
            return wrong(f"{answer.devices} devices are more than the {most_devices} that we have.")
        for name, value in (keep or {}).items():
            if getattr(answer, name) != value:
                return wrong(
                    f"The plan has {name}={getattr(answer, name)!r}; keep {name}={value!r}."
                )
        report = report_of(model(), answer)
        found = [condition(report) for condition in conditions]
        words = _sentences(*(sentence for _, sentence in found))
        return Verdict(all(holds for holds, _ in found), f"{answer.strategy}: {words}")

    return judge


def peak_at_most(limit_bytes: int) -> Condition:
    """The highest peak of any rank stays within so many bytes."""

    def holds(report: Report) -> tuple[bool, str]:
        rank = max(report.ranks, key=lambda rank: rank.peak.peak_bytes)
        peak = rank.peak.peak_bytes
        top = max(rank.peak.at_peak.items(), key=lambda item: item[1], default=("", 0))
        said = (
            f"rank {rank.rank} measured a peak of {peak / MIB:.1f} MiB, "
            f"{'within' if peak <= limit_bytes else 'above'} {limit_bytes / MIB:g} MiB; "
            f"its largest part is {top[0]} with {top[1] / MIB:.1f} MiB"
        )
        return peak <= limit_bytes, said

    return holds


def wire_at_most(limit_bytes: int) -> Condition:
    """The rank that sends most sends at most so many bytes in a step, on ideal rings."""

    def holds(report: Report) -> tuple[bool, str]:
        sent = report.wire_bytes
        where = "within" if sent <= limit_bytes else "above"
        return sent <= limit_bytes, (
            f"the rank that sends most sent {sent / MIB:.2f} MiB in a step, {where} "
            f"{limit_bytes / MIB:g} MiB"
        )

    return holds


def choice(answer_is: Callable[[], str], options: Mapping[str, Callable[[], str]]) -> Judge:
    """An answer that is one of a few words.

    Args:
        answer_is: the right one, worked out from what is measured.
        options: every word that may be chosen -> what is said about it when it is.
    """

    def judge(answer: Any) -> Verdict:
        if not isinstance(answer, str):
            return wrong(f"The answer is a text, not {_kind(answer)}: {_listed(options)}.")
        chosen = next((o for o in options if o.casefold() == answer.strip().casefold()), None)
        if chosen is None:
            return wrong(f"{answer[:60]!r} is none of the choices: {_listed(options)}.")
        return Verdict(chosen == answer_is(), options[chosen]())

    return judge


def _listed(options: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, options))


def _kind(answer: Any) -> str:
    """What somebody gave, for a sentence."""
    if callable(answer):
        return "a function"
    return f"{answer!r:.60}"


def _sentences(*parts: str) -> str:
    return " ".join(f"{_capital(part).rstrip('.')}." for part in parts if part)


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
