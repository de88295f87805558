"""Reports side by side: what each costs, and where two of them differ.

The same plan predicted, simulated and measured, or two plans of one model: a Report is a Report.
What is compared is the rank with the highest peak in the first Report, and that same rank in the
others where they have it: ranks of one plan differ, and so each is held against itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from parallab.report import CATEGORIES, Rank, Report, sent, total_communication

Unit = Literal["bytes", "seconds", "share", "number"]
# What explains a difference between theory and a run, where the code is the same.
CAUSES = {
    "optimizer": "AdamW keeps a step counter of 4 bytes for each tensor",
    "workspace": "memory that no tensor owns, such as Gloo's clones of what it reduces",
    "communication": "buffers live until their operation is over, which is a matter of timing",
    "unsharded": "how early the next weights are gathered is a matter of timing",
    "temporary": "what a kernel needs for a moment depends on the kernel",
}


@dataclass(frozen=True)
class Row:
    """One figure of all Reports; None where a Report does not know it."""

    name: str
    unit: Unit
    values: tuple[float | None, ...]

    @property
    def differs(self) -> bool:
        """Whether two that know it do not agree."""
        return len({value for value in self.values if value is not None}) > 1


@dataclass(frozen=True)
class Section:
    """Figures that belong together."""

    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Difference:
    """A category in which two Reports differ.

    Attributes:
        cause: what usually explains it where both are of one plan; "" where nothing is known.
    """

    category: str
    first_bytes: int
    second_bytes: int
    cause: str


def compare(reports: Sequence[Report]) -> list[Section]:
    """The figures of Reports side by side, in the order in which people ask for them.

    Raises:
        ValueError: there is nothing to compare, or a Report without a finished step.
    """
    if not reports:
        raise ValueError("There is no Report to compare.")
    for report in reports:
        if not report.steps:
            raise ValueError(f"{report!r} has no finished step, so it has no figures to compare.")
    ranks = compared_ranks(reports)
    memories = [rank.peak for rank in ranks]
    sections = [
        Section(
            f"Memory at the peak of rank {ranks[0].rank}",
            (
                Row("peak", "bytes", tuple(memory.peak_bytes for memory in memories)),
                *_by_category([memory.at_peak for memory in memories]),
            ),
        ),
        Section(
            f"Model states of rank {ranks[0].rank}",
            _by_category([memory.states for memory in memories]),
        ),
        Section(f"Communication of rank {ranks[0].rank} per step", _communication(reports, ranks)),
        Section("The whole", _whole(reports)),
    ]
    return [section for section in sections if section.rows]


def differences(first: Report, second: Report) -> list[Difference]:
    """The categories in which the peaks of one rank differ, the largest difference first."""
    one, other = (rank.peak for rank in compared_ranks([first, second]))
    same_plan = first.plan == second.plan and first.model == second.model
    found = [
        Difference(
            category,
            one.at_peak.get(category, 0),
            other.at_peak.get(category, 0),
            CAUSES.get(category, "") if same_plan else "",
        )
        for category in CATEGORIES
    ]
    found = [d for d in found if d.first_bytes != d.second_bytes]
    return sorted(found, key=lambda d: -abs(d.first_bytes - d.second_bytes))


def compared_ranks(reports: Sequence[Report]) -> list[Rank]:
    """Of each Report the rank that is compared.

    A simulated or predicted Report of a large world holds one rank of each kind; where it lacks the
    very rank, the one at the same place of the pipeline stands for it.
    """
    first = max(reports[0].ranks, key=lambda rank: rank.peak.peak_bytes)
    return [_counterpart(first, report) for report in reports]


def _counterpart(rank: Rank, report: Report) -> Rank:
    def distance(other: Rank) -> tuple[int, int]:
        apart = sum(rank.coords.get(axis) != at for axis, at in other.coords.items())
        return int(rank.coords.get("pp") != other.coords.get("pp")), apart

    same = [other for other in report.ranks if other.rank == rank.rank]
    return same[0] if same else min(report.ranks, key=distance)


def _by_category(memories: Iterable[dict[str, int]]) -> tuple[Row, ...]:
    memories = list(memories)
    return tuple(
        Row(category, "bytes", tuple(m.get(category, 0) if m else None for m in memories))
        for category in CATEGORIES
        if any(memory.get(category) for memory in memories)
    )


def _communication(reports: Sequence[Report], ranks: Sequence[Rank]) -> tuple[Row, ...]:
    totals = [
        total_communication(rank.steps[report.steps - 1].communication)
        for report, rank in zip(reports, ranks, strict=True)
    ]
    keys = sorted({key for rows in totals for key in rows})
    rows = [
        Row(
            f"{op.replace('_', '-')} on {axis}, payload",
            "bytes",
            tuple(rows[op, axis]["payload_bytes"] if (op, axis) in rows else 0 for rows in totals),
        )
        for op, axis in keys
    ]
    on_wire = [
        sent(rank.steps[report.steps - 1], "wire_bytes")
        for report, rank in zip(reports, ranks, strict=True)
    ]
    if any(on_wire):
        rows.append(Row("sent on the wire, ideal rings", "bytes", tuple(on_wire)))
    return tuple(rows)


def _whole(reports: Sequence[Report]) -> tuple[Row, ...]:
    bubbles = [report.bubble for report in reports]
    rows = [
        Row("highest peak of any rank", "bytes", tuple(r.peak_bytes for r in reports)),
        Row("step", "seconds", tuple(r.step_seconds for r in reports)),
        Row("tokens per second", "number", tuple(r.tokens_per_second for r in reports)),
        Row("bubble, idle/total", "share", tuple(b.idle_of_total if b else None for b in bubbles)),
        Row("last loss", "number", tuple(_last_loss(r) for r in reports)),
    ]
    return tuple(row for row in rows if any(value is not None for value in row.values))


def _last_loss(report: Report) -> float | None:
    loss = report.losses[-1]
    return None if math.isnan(loss) else loss
