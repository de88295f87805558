"""Reports side by side: what each costs, and where two of them differ.

The same plan predicted, simulated and measured, or two plans of one model: a Report is a Report.
What is compared is the rank with the highest peak in the first Report. In another Report of the
same plan that is the same rank, since ranks of one plan differ, and so each is held against itself;
of another plan it is again the rank with the highest peak, which is what a device must hold.
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
OTHER_KERNELS = "a GPU's kernels keep and need other tensors than those of the CPU"
ANOTHER_MOMENT = "the highest moment is another, some operations earlier or later in the step"


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
        cause: what usually explains it where both are of one plan; "" where they are not.
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
    whose = ranks_in_words(reports)
    memories = [rank.peak for rank in ranks]
    sections = [
        Section(
            f"Memory at the peak of {whose}",
            (
                Row("peak", "bytes", tuple(memory.peak_bytes for memory in memories)),
                *_by_category([memory.at_peak for memory in memories]),
            ),
        ),
        Section(
            f"Model states of {whose}",
            _by_category([memory.states for memory in memories]),
        ),
        Section(f"Communication of {whose} per step", _communication(reports, ranks)),
        Section("The whole", _whole(reports)),
    ]
    return [section for section in sections if section.rows]


def differences(first: Report, second: Report) -> list[Difference]:
    """The categories in which the peaks of one rank differ, the largest difference first."""
    ranks = compared_ranks([first, second])
    one, other = (rank.peak.at_peak for rank in ranks)
    found = [
        Difference(c, one.get(c, 0), other.get(c, 0), _cause(c, first, second, ranks))
        for c in CATEGORIES
        if one.get(c, 0) != other.get(c, 0)
    ]
    return sorted(found, key=lambda d: -abs(d.first_bytes - d.second_bytes))


def _cause(category: str, first: Report, second: Report, ranks: Sequence[Rank]) -> str:
    if first.plan != second.plan or first.model != second.model:
        return ""
    if len({rank.device.startswith("cuda") for rank in ranks}) > 1:
        return OTHER_KERNELS
    return CAUSES.get(category, ANOTHER_MOMENT)


def compared_ranks(reports: Sequence[Report]) -> list[Rank]:
    """Of each Report the rank that is compared.

    A simulated or predicted Report of a large world holds one rank of each kind; where it lacks the
    same rank, the one at the same place of the pipeline stands for it.
    """
    first = _fullest(reports[0])
    return [
        _counterpart(first, report) if report.plan == reports[0].plan else _fullest(report)
        for report in reports
    ]


def ranks_in_words(reports: Sequence[Report]) -> str:
    """Which ranks are compared; of one plan it is one, even where a rank like it stands for it."""
    numbers = [rank.rank for rank in compared_ranks(reports)]
    one_plan = all(report.plan == reports[0].plan for report in reports)
    if one_plan or len(set(numbers)) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(map(str, numbers))}"


def _fullest(report: Report) -> Rank:
    return max(report.ranks, key=lambda rank: rank.peak.peak_bytes)


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
