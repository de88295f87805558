"""A Report as text: plain tables whose headings say what was measured and what was computed."""

from __future__ import annotations

import math

from parallab.predict.bubble import bubble
from parallab.predict.placement import stage_lines
from parallab.report import CATEGORIES, WARM_STEP, Rank, Report, Step, sent
from parallab.tables import aligned
from parallab.units import percent

# A wider matrix would not fit a terminal.
TRAFFIC_RANKS = 16
# Of a prediction: what is kept for the backward pass depends on them.
KERNELS = {"cpu": ", with the CPU's kernels", "cuda": ", with a GPU's fused kernels"}
UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))


def report_text(report: Report) -> str:
    """Everything a person asks first, a paragraph each."""
    if not report.steps:
        return f"{_what(report)}\nNo step was finished."
    parts = [_what(report), _memory(report), _communication(report), _traffic(report)]
    parts += ["\n".join(stage_lines(report.model, report.plan)), _pace(report)]
    return "\n\n".join(part for part in parts if part)


def _what(report: Report) -> str:
    devices = ", ".join(sorted({rank.device for rank in report.ranks})) or "no device"
    torch = report.environment.get("torch", "unknown")
    where = f"on {devices}, torch {torch}" if report.source == "measured" else "for one warm step"
    kernels = KERNELS.get(report.environment.get("kernels", ""), "")
    return f"{report.model}: {report.plan}\n{report.source.capitalize()} {where}{kernels}"


def _memory(report: Report) -> str:
    steps = [_peak_step(rank) for rank in report.ranks]
    highest = max(step.memory.peak_bytes for step in steps)
    unit, size = next((u, s) for u, s in UNITS if highest >= 10 * s or s == 1)
    shown = [c for c in CATEGORIES if any(step.memory.at_peak.get(c) for step in steps)]

    def cell(number: int) -> str:
        return f"{number / size:,.2f}" if size > 1 else f"{number}"

    rows = [
        (
            _number(report, rank),
            rank.device,
            cell(step.memory.peak_bytes),
            *(cell(step.memory.at_peak.get(c, 0)) for c in shown),
        )
        for rank, step in zip(report.ranks, steps, strict=True)
    ]
    numbers = sorted({step.step for step in steps})
    which = f" in step{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
    title = f"Memory at its peak, {report.source}{which if _ran(report) else ''}, in {unit}"
    return f"{title}\n{aligned(('rank', 'device', 'peak', *shown), rows, left=2)}"


def _ran(report: Report) -> bool:
    """Whether its steps are those of a run, and not the one that stands for all."""
    return report.source == "measured"


def _number(report: Report, rank: Rank) -> str:
    """A rank's number, and how many like it there are where it stands for others."""
    count = report.environment.get("represents", {}).get(str(rank.rank), 1)
    return f"{rank.rank} (of {count})" if count > 1 else str(rank.rank)


def _peak_step(rank: Rank) -> Step:
    """The step whose memory `Rank.peak` is."""
    return next(step for step in rank.steps if step.memory is rank.peak)


def _communication(report: Report) -> str:
    last = report.steps - 1
    when = f" in step {last}" if _ran(report) else ""
    busiest = max(report.ranks, key=lambda rank: sent(rank.steps[last], "wire_bytes"))
    totals = report.communication(report.ranks.index(busiest))
    if not totals:
        return f"Communication{when}, {report.source}: none"
    rows = [
        (op, axis, *(f"{row[key]:,}" for key in ("count", "payload_bytes", "wire_bytes")))
        for (op, axis), row in totals.items()
    ]
    axes = sorted({axis for _, axis in totals})
    for axis in axes if len(axes) > 1 else []:
        of_axis = [row for (op, at), row in totals.items() if at == axis and op != "recv"]
        sums = (f"{sum(r[key] for r in of_axis):,}" for key in ("payload_bytes", "wire_bytes"))
        rows.append((f"sent on {axis}", "", "", *sums))
    sums = (f"{sent(busiest.steps[last], key):,}" for key in ("payload_bytes", "wire_bytes"))
    rows.append(("total sent", "", "", *sums))
    title = (
        f"Communication{when}, rank {busiest.rank}, which sends most, in bytes\n"
        f"(calls and payload {report.source}, wire computed for an ideal ring)"
    )
    if last < WARM_STEP and _ran(report):
        title += f"\n(bytes settle in step {WARM_STEP}: train {WARM_STEP + 1} steps or more)"
    return f"{title}\n{aligned(('operation', 'axis', 'calls', 'payload', 'wire'), rows, left=2)}"


def _traffic(report: Report) -> str:
    """Who sends how much to whom, where there are more than two to tell apart."""
    last = report.steps - 1
    traffic = [rank.steps[last].traffic for rank in report.ranks]
    most = max((size for row in traffic for size in row.values()), default=0)
    if not most or not 2 < len(traffic) <= TRAFFIC_RANKS or len(traffic) < report.plan.devices:
        return ""
    unit, size = next((u, s) for u, s in UNITS if most >= 10 * s or s == 1)
    rows = [
        (f"rank {rank.rank}", *(f"{row[to.rank] / size:,.1f}" if to.rank in row else "·"
                                for to in report.ranks))
        for rank, row in zip(report.ranks, traffic, strict=True)
    ]  # fmt: skip
    title = (
        f"Sent{f' in step {last}' if _ran(report) else ''}, from row to column, in {unit}\n"
        f"(payload {report.source}, its way computed for ideal rings)"
    )
    return f"{title}\n{aligned(('to rank', *(str(rank.rank) for rank in report.ranks)), rows)}"


def _pace(report: Report) -> str:
    losses = report.losses
    lines = []
    if not math.isnan(losses[-1]):
        lines.append(
            f"Loss  {losses[0]:.4f} → {losses[-1]:.4f} in {report.steps} steps, {report.source}"
        )
    seconds, tokens = report.step_seconds, report.tokens_per_second
    if seconds is not None and tokens is not None:
        lines.append(
            f"Step  {seconds * 1e3:,.1f} ms, {tokens:,.0f} tokens per second, {report.source}: "
            f"{_timed(report)}"
        )
    measured, formula = report.bubble, bubble(report.plan)
    if measured is not None and formula is not None:
        lines.append(
            f"Bubble  idle/total {percent(measured.idle_of_total, 1)} {report.source}, "
            f"{percent(formula.idle_of_total, 1)} by the schedule; "
            f"idle/ideal {percent(measured.idle_of_ideal, 1)} and "
            f"{percent(formula.idle_of_ideal, 1)}"
        )
        cores, here = report.environment.get("cores"), report.environment.get("hosts", [])
        if (
            cores
            and len(here) == 1
            and "cpu" in report.ranks[0].device
            and cores < len(report.ranks)
        ):
            lines.append(
                f"        ({len(report.ranks)} ranks share {cores} cores: some wait for those)"
            )
    return "\n".join(lines)


def _timed(report: Report) -> str:
    """Which steps `Report.step_seconds` is the median of."""
    ranks = report.ranks
    untraced = [i for i in range(1, report.steps) if not any(r.steps[i].traced for r in ranks)]
    if untraced:
        return f"median of {len(untraced)} untraced step{'s' if len(untraced) > 1 else ''}"
    return "median of all steps, the first or traced ones too, which are slower"
