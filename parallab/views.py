"""A Report's figures as small tables: what it sends, and what its peak is made of."""

from __future__ import annotations

from collections.abc import Sequence

from parallab.compare.side_by_side import compared_ranks
from parallab.report import CATEGORIES, Report
from parallab.tables import Table

MIB = 2**20


def operations(report: Report, rank: int = 0) -> Table:
    """The operations of one rank in a warm step: calls, payload, and bytes on ideal rings.

    Raises:
        ValueError: a Report without a finished step.
    """
    _check(report)
    found = report.communication(rank)
    rows = [
        (
            op.replace("_", "-"), axis, f"{row['count']:,}", f"{row['payload_bytes']:,}",
            f"{row['wire_bytes']:,}",
        )
        for (op, axis), row in found.items()
    ]  # fmt: skip
    totals = [f"{sum(row[key] for row in found.values()):,}"
              for key in ("count", "payload_bytes", "wire_bytes")]  # fmt: skip
    return Table(
        ("operation", "axis", "calls", "payload, bytes", "wire, bytes"),
        (*rows, ("total", "", *totals)),
        f"{report.plan.strategy}, rank {rank}, one step; calls and payload {report.source}, wire "
        "computed for ideal rings",
        left=2,
    )


def categories(reports: Sequence[Report]) -> Table:
    """The peak of the fullest rank by category, in MiB, a column for each Report.

    Raises:
        ValueError: no Report, or one without a finished step.
    """
    if not reports:
        raise ValueError("There is no Report to show.")
    for report in reports:
        _check(report)
    memories = [rank.peak for rank in compared_ranks(reports)]
    rows = [
        (category, *(f"{memory.at_peak.get(category, 0) / MIB:,.2f}" for memory in memories))
        for category in CATEGORIES
        if any(memory.at_peak.get(category) for memory in memories)
    ]
    peaks = tuple(f"{memory.peak_bytes / MIB:,.2f}" for memory in memories)
    sources = " and ".join(dict.fromkeys(report.source for report in reports))
    return Table(
        ("at the peak, MiB", *(report.plan.strategy for report in reports)),
        (*rows, ("peak", *peaks)),
        f"{sources}, rank {compared_ranks(reports)[0].rank}",
    )


def _check(report: Report) -> None:
    if not report.steps:
        raise ValueError(f"{report!r} has no finished step to show.")
