"""Many plans at once: what each costs, a row for each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from parallab.advise.advice import Option, describe
from parallab.errors import PlanError
from parallab.hardware import Hardware
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.predict import predict
from parallab.predict.bubble import bubble
from parallab.predict.time import step_time
from parallab.report import Report
from parallab.tables import Table
from parallab.units import percent, three_figures

DEGREES = ("dp", "pp", "tp")
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_FIELDS = tuple(Plan.__dataclass_fields__)


def sweep(model: Model, plan: Plan, **choices: Iterable[Any]) -> list[Report]:
    """Predicts the plan with each of these choices, and every combination of them.

    >>> plan = Plan("dp+pp", dp=2, pp=2, batch=16)
    >>> [r.plan.micro_batches for r in sweep(Model("micro"), plan, micro_batches=(2, 4, 8))]
    [2, 4, 8]

    Args:
        choices: fields of `Plan`, with the values that each takes; also `micro_batch`, sequences in
            one, from which their number follows. Devices follow from the degrees that are given,
            and degrees that are not from the devices.

    Raises:
        PlanError: a combination that cannot work.
    """
    unknown = set(choices) - {*_FIELDS, "micro_batch"}
    if unknown:
        raise PlanError(
            f"A plan has no {', '.join(sorted(unknown))}; its fields are {', '.join(_FIELDS)}."
        )
    every = itertools.product(*choices.values())
    plans = [_with(plan, dict(zip(choices, values, strict=True))) for values in every]
    return [predict(model, plan) for plan in plans]


def _with(plan: Plan, choice: dict[str, Any]) -> Plan:
    """The plan with other fields."""
    size = choice.pop("micro_batch", None)
    fields = {**plan.to_dict(), **choice}
    if "devices" in choice:
        fields = {k: v for k, v in fields.items() if k not in DEGREES or k in choice}
    else:
        fields.pop("devices")
    if size is not None:
        degrees = {k: v for k, v in fields.items() if k in ("strategy", "devices", *DEGREES)}
        each = size * Plan(**degrees).dp
        if fields["batch"] % each:
            nearest = each * max(1, fields["batch"] // each)
            raise PlanError(
                f"A batch of {fields['batch']} does not divide into micro-batches of {size} on "
                f"{each // size} data-parallel ranks; choose a batch of {nearest}."
            )
        fields["micro_batches"] = fields["batch"] // each
    return Plan.from_dict(fields)


def summary(reports: Sequence[Report], hardware: Hardware | None = None) -> Table:
    """Reports as rows: how their plans differ, then peak, bytes sent, bubble and time.

    Peaks are of the rank with the highest; bytes of the rank that sends most, on ideal rings.

    Args:
        hardware: GPUs to estimate times for, as many nodes of this kind as each plan needs; else
            times are shown where they were measured.

    Raises:
        ValueError: there is no Report.
    """
    if not reports:
        raise ValueError("There is no Report to show.")
    plans = [report.plan for report in reports]
    names = [name for name in _FIELDS if len({getattr(plan, name) for plan in plans}) > 1]
    columns = [(name.replace("_", " "), [str(getattr(plan, name)) for plan in plans])
               for name in names]  # fmt: skip
    if len({report.source for report in reports}) > 1 or not columns:
        columns.append(("", [report.source for report in reports]))
    words = len(columns)
    columns.append(_bytes("peak", [report.peak_bytes for report in reports]))
    sent = [sent_by_axis(report) for report in reports]
    most = max((size for by_axis in sent for size in by_axis.values()), default=0)
    columns += [
        _bytes(f"sent on {axis}", [by_axis.get(axis, 0) for by_axis in sent], most)
        for axis in DEGREES
        if any(axis in by_axis for by_axis in sent)
    ]
    columns += _bubbles(reports) + _times(reports, hardware)
    return _table(columns, _caption(reports, hardware), words)


def ranking(options: Sequence[Option], reports: Sequence[Report] = ()) -> Table:
    """Proposed plans beside what they took: need and peak, estimated and measured time.

    Args:
        options: of an `Advice`.
        reports: measured, one for each option; without any, what is proposed.

    Raises:
        ValueError: no option, another number of Reports, or one without time.
    """
    if not options:
        raise ValueError("There is no option to show.")
    measured = [report.step_seconds for report in reports]
    if reports and (len(options) != len(reports) or None in measured):
        raise ValueError("Give one measured Report for each option.")
    estimated = [option.step.seconds for option in options]
    columns: list[tuple[str, list[str]]] = [
        ("plan", [f"{option.family}: {describe(option.plan)}" for option in options]),
        *([] if reports else [("why", [option.reason for option in options])]),
        _bytes("need, predicted", [option.need_bytes for option in options]),
        ("step, estimated ms", [f"{seconds * 1e3:,.0f}" for seconds in estimated]),
    ]
    if reports:
        known = [seconds or 0.0 for seconds in measured]
        places = zip(map(_places(estimated), estimated), map(_places(known), known), strict=True)
        columns += [
            _bytes("peak, measured", [report.peak_bytes for report in reports]),
            ("step, measured ms", [f"{seconds * 1e3:,.0f}" for seconds in known]),
            ("place", [f"{before} → {after}" for before, after in places]),
        ]
    return _table(columns, left=1 if reports else 2)


def _places(among: Sequence[float]) -> Callable[[float], int]:
    """1 for the shortest."""
    return lambda seconds: 1 + sum(other < seconds for other in among)


def _table(columns: Sequence[tuple[str, Sequence[str]]], caption: str = "", left: int = 1) -> Table:
    rows = zip(*(cells for _, cells in columns), strict=True)
    return Table(tuple(head for head, _ in columns), tuple(rows), caption, left)


def sent_by_axis(report: Report) -> dict[str, int]:
    """Axis -> bytes that the rank which sends most sends on it in a step, on ideal rings."""
    most: dict[str, int] = {}
    for at in range(len(report.ranks)):
        sent: dict[str, int] = {}
        for (_, axis), row in report.communication(at).items():
            sent[axis] = sent.get(axis, 0) + row["wire_bytes"]
        most = {axis: max(most.get(axis, 0), sent.get(axis, 0)) for axis in {*most, *sent}}
    return most


def _caption(reports: Sequence[Report], hardware: Hardware | None) -> str:
    models = dict.fromkeys(str(report.model) for report in reports)
    sources = dict.fromkeys(report.source for report in reports)
    said = f"{', '.join(models)}: {' and '.join(sources)}, per step"
    if hardware is None:
        return said
    each = hardware.gpus_per_node
    return (
        f"{said}; times estimated for nodes of {each} × {hardware.gpu.title or hardware.gpu.name}"
    )


def _bytes(name: str, sizes: list[int], most: int | None = None) -> tuple[str, list[str]]:
    """In the unit that suits the largest of them, or of what else they are to be held against."""
    most = max(sizes) if most is None else most
    unit, size = next((u for u in _UNITS if most >= u[1]), _UNITS[-1])
    return f"{name}, {unit}", [f"{number / size:,.2f}" for number in sizes]


def _bubbles(reports: Sequence[Report]) -> list[tuple[str, list[str]]]:
    known = [report.bubble or bubble(report.plan) for report in reports]
    if not any(known):
        return []
    return [("bubble", [percent(one.idle_of_total) if one else "–" for one in known])]


def _times(reports: Sequence[Report], hardware: Hardware | None) -> list[tuple[str, list[str]]]:
    if hardware is None:
        if not any(report.step_seconds for report in reports):
            return []
        seconds = [report.step_seconds for report in reports]
        return [("step, ms", [f"{s * 1e3:,.0f}" if s else "–" for s in seconds])]
    steps = [
        step_time(
            report.model, report.plan,
            hardware.with_nodes(-(-report.plan.devices // hardware.gpus_per_node)),
        )
        for report in reports
    ]  # fmt: skip
    each = [step.tokens_per_second / step.devices for step in steps]
    return [
        ("step, estimated s", [three_figures(step.seconds) for step in steps]),
        ("tokens/s each, estimated", [f"{pace:,.0f}" for pace in each]),
    ]
