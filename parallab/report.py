"""The Report: what a plan costs for a model, measured, simulated or predicted, all of one shape.

A Report is plain data. It holds, per rank and step, the memory by category, every collective with
its bytes, and the time of each span. Plots, panels, comparison and export take Reports and do not
care which of the three answers they hold.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from parallab import html
from parallab.errors import ParallabError, ReportError
from parallab.models.spec import Model
from parallab.plan import Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from parallab.predict.bubble import Bubble

SCHEMA = "parallab.report/1"

CATEGORIES = (
    "parameters", "gradients", "optimizer", "activations", "buffers", "unsharded",
    "communication", "temporary", "workspace",
)  # fmt: skip
OPERATIONS = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter",
    "all_to_all", "send", "recv", "barrier",
)  # fmt: skip
_KNOWN = set(CATEGORIES)
PHASES = ("forward", "backward", "optimizer")
# DDP settles its buckets in the first steps and AdamW makes its state in the first; from this step
# on, every step sends the same bytes.
WARM_STEP = 3

Source = Literal["measured", "simulated", "predicted"]


@dataclass
class PhaseMemory:
    """The highest total within one phase of a step, and what it was made of."""

    phase: str
    peak_bytes: int
    by_category: dict[str, int] = field(default_factory=dict)


@dataclass
class Memory:
    """One step's memory on one rank.

    Attributes:
        peak_bytes: the highest total in the step.
        at_peak: bytes by category at that moment; sums to peak_bytes. Empty where the step was not
            traced and only the allocator's total is known.
        states: bytes of parameters, gradients, optimizer and buffers, as the optimizer finds them.
        phases: the same peak within each phase.
        series: traced steps only: "seconds" since the step began, and bytes by category at each.
        marks: every step: "seconds" since it began, and "bytes", the allocator's total where phases
            begin and end. Empty where the total cannot be read.
    """

    peak_bytes: int
    at_peak: dict[str, int] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)
    phases: list[PhaseMemory] = field(default_factory=list)
    series: dict[str, list[float]] = field(default_factory=dict)
    marks: dict[str, list[float]] = field(default_factory=dict)


@dataclass
class Communication:
    """All operations of one kind, axis and phase in one step of one rank."""

    op: str
    axis: str
    phase: str
    count: int
    payload_bytes: int
    wire_bytes: int
    seconds: float | None = None


@dataclass
class Span:
    """A stretch of one rank's time; `start` and `end` in seconds since the step began."""

    kind: str
    stage: int
    micro_batch: int
    start: float
    end: float


@dataclass
class Step:
    """One training step of one rank.

    Attributes:
        loss: mean over this rank's share of the batch; None on a rank that computes none.
        seconds: its duration; None where nothing ran. A traced step is slower than it would be.
        traced: whether memory was followed by category.
        begin: when it began, in seconds since 1970 on the host's steady clock, which its ranks
            share. None where it is not known.
        traffic: receiving rank -> bytes sent to it, on ideal rings; adds up to the wire bytes.
    """

    step: int
    loss: float | None
    seconds: float | None
    traced: bool
    memory: Memory
    communication: list[Communication] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    begin: float | None = None
    traffic: dict[int, int] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Step:
        """The inverse of `dataclasses.asdict`."""
        for name in ("loss", "seconds", "begin"):
            if not (data.get(name) is None or _is_number(data[name])):
                raise TypeError(f"{name}={data[name]!r} is no number")
        memory = dict(data["memory"])
        at_peak = memory.get("at_peak", {})
        sizes = memory["peak_bytes"], *at_peak.values()
        if not (all(_is_number(s) and s >= 0 for s in sizes) and at_peak.keys() <= _KNOWN):
            raise TypeError(f"memory of step {data['step']!r} is not bytes by category")
        phases = [PhaseMemory(**p) for p in memory.pop("phases", [])]
        built = ("memory", "communication", "spans", "traffic")
        rest = {k: v for k, v in data.items() if k not in built}
        return cls(
            **rest,
            traffic={int(rank): size for rank, size in data.get("traffic", {}).items()},
            memory=Memory(**memory, phases=phases),
            communication=[Communication(**c) for c in data.get("communication", [])],
            spans=[Span(**s) for s in data.get("spans", [])],
        )


@dataclass
class Rank:
    """One rank's place in the mesh and its steps."""

    rank: int
    coords: dict[str, int]
    device: str
    host: str
    steps: list[Step] = field(default_factory=list)

    @property
    def peak(self) -> Memory:
        """The memory of the step with the highest peak, traced steps before others."""
        traced = [s for s in self.steps if s.traced] or self.steps
        return max((s.memory for s in traced), key=lambda m: m.peak_bytes)


@dataclass
class Report(html.Shown):
    """What a plan costs for a model.

    >>> report = Report.load("run.json")       # doctest: +SKIP
    >>> report.peak_bytes, report.payload_bytes, report.step_seconds    # doctest: +SKIP

    Attributes:
        source: "measured" on real ranks, "simulated" on fake ones, or "predicted" by formulas.
        environment: versions, backend, hosts: what the figures depend on besides the plan.
    """

    source: Source
    model: Model
    plan: Plan
    environment: dict[str, Any] = field(default_factory=dict)
    ranks: list[Rank] = field(default_factory=list)

    # What people ask first.

    @property
    def steps(self) -> int:
        """Steps that every rank has finished."""
        return min((len(rank.steps) for rank in self.ranks), default=0)

    @property
    def losses(self) -> list[float]:
        """The global loss of each step: the mean over the ranks that computed one."""
        return [mean_loss(r.steps[i].loss for r in self.ranks) for i in range(self.steps)]

    @property
    def peak_bytes(self) -> int:
        """The highest peak of any rank."""
        return max((rank.peak.peak_bytes for rank in self.ranks if rank.steps), default=0)

    @property
    def timed_seconds(self) -> list[float]:
        """Durations of the untraced steps after the first; of all steps where there is none.

        A step takes as long as its slowest rank. Empty where nothing ran.
        """
        slowest: dict[bool, list[float]] = {True: [], False: []}
        for step in range(self.steps):
            seconds = [r.steps[step].seconds for r in self.ranks]
            known = [s for s in seconds if s is not None]
            if known:
                timed = step > 0 and not any(r.steps[step].traced for r in self.ranks)
                slowest[timed].append(max(known))
        return slowest[True] or slowest[False]

    @property
    def step_seconds(self) -> float | None:
        """The median of `timed_seconds`."""
        timed = self.timed_seconds
        return statistics.median(timed) if timed else None

    @property
    def bubble(self) -> Bubble | None:
        """How idle the ranks of a pipeline were: the median of the untraced steps after the first.

        Of all steps where there is no such step; None without a pipeline, or without spans.
        """
        from parallab.predict.bubble import Bubble, measured_bubble

        found: dict[bool, list[Bubble]] = {True: [], False: []}
        for index in range(self.steps):
            steps = [rank.steps[index] for rank in self.ranks]
            bubble = measured_bubble(self.plan, steps)
            if bubble is not None:
                found[index > 0 and not any(step.traced for step in steps)].append(bubble)
        chosen = found[True] or found[False]
        if not chosen:
            return None
        return Bubble(
            statistics.median(bubble.idle_of_total for bubble in chosen),
            statistics.median(bubble.idle_of_ideal for bubble in chosen),
        )

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of the global batch per second of a step."""
        seconds = self.step_seconds
        return self.plan.batch * self.plan.seq / seconds if seconds else None

    @property
    def warm_step(self) -> int | None:
        """The step that stands for all later ones: the last, None before the first."""
        return self.steps - 1 if self.steps else None

    def communication(self, rank: int | None = None) -> dict[tuple[str, str], dict[str, int]]:
        """Bytes of the warm step by (operation, axis), of one rank or the busiest.

        Returns:
            {(op, axis): {"count", "payload_bytes", "wire_bytes"}}
        """
        if self.warm_step is None:
            return {}
        step = self.warm_step
        if rank is None:
            busiest = max(self.ranks, key=lambda r: sent(r.steps[step], "wire_bytes"))
            return total_communication(busiest.steps[step].communication)
        return total_communication(self.ranks[rank].steps[step].communication)

    @property
    def payload_bytes(self) -> int:
        """Payload of the warm step on the busiest rank."""
        rows = self.communication().items()
        return sum(row["payload_bytes"] for (op, _), row in rows if op != "recv")

    @property
    def wire_bytes(self) -> int:
        """Bytes that the busiest rank sends in the warm step, on an ideal ring."""
        return sum(row["wire_bytes"] for row in self.communication().values())

    # Storage.

    def to_dict(self) -> dict[str, Any]:
        """The Report as JSON-ready data."""
        return {
            "schema": SCHEMA,
            "source": self.source,
            "model": self.model.to_dict(),
            "plan": self.plan.to_dict(),
            "environment": self.environment,
            "ranks": [_rank_to_dict(rank) for rank in self.ranks],
        }

    @classmethod
    def from_dict(cls, data: object) -> Report:
        """The inverse of `to_dict`.

        Raises:
            ReportError: data of another schema, or damaged.
        """
        if not isinstance(data, Mapping) or "schema" not in data:
            raise ReportError(f"This is not a parallab Report: it names no schema ({SCHEMA}).")
        if data["schema"] != SCHEMA:
            raise ReportError(
                f"This Report has the schema {data['schema']!r}; this version reads {SCHEMA}."
            )
        if data.get("source") not in get_args(Source):
            raise ReportError(
                f"This Report is damaged: its source is {data.get('source')!r}, not one of "
                f"{', '.join(get_args(Source))}."
            )
        try:
            ranks = [
                Rank(**{**rank, "steps": [Step.from_dict(step) for step in rank["steps"]]})
                for rank in data["ranks"]
            ]
            return cls(
                source=data["source"],
                model=Model.from_dict(data["model"]),
                plan=Plan.from_dict(data["plan"]),
                environment=dict(data.get("environment", {})),
                ranks=ranks,
            )
        except ParallabError as error:
            raise ReportError(f"This Report is damaged: {error}") from error
        except KeyError as error:
            raise ReportError(f"This Report is damaged: it has no {error}.") from error
        except (TypeError, AttributeError, ValueError) as error:
            raise ReportError(f"This Report is damaged: {error}.") from error

    def save(self, path: str | Path) -> Path:
        """Writes the Report as JSON and returns its path."""
        path = Path(path)
        path.write_text(json.dumps(self.to_dict(), allow_nan=False), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Report:
        """Reads a Report.

        Raises:
            ReportError: no such file, no JSON, or no Report of this schema.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ReportError(f"{path} cannot be read as a Report: {error}.") from error
        return cls.from_dict(data)

    # Views.

    def plot(self) -> Figure:
        """Memory, timeline, communication, traffic and loss as one figure."""
        from parallab.plots import plot_report

        return plot_report(self)

    def to_frame(self) -> DataFrame:
        """One row per rank and step (needs pandas)."""
        import pandas as pd

        rows = [
            {
                "rank": rank.rank, "step": step.step, "loss": step.loss, "seconds": step.seconds,
                "traced": step.traced, "peak_bytes": step.memory.peak_bytes,
                "payload_bytes": sent(step, "payload_bytes"),
                "wire_bytes": sent(step, "wire_bytes"),
                **{f"{c}_bytes": step.memory.at_peak.get(c) for c in CATEGORIES},
            }
            for rank in self.ranks
            for step in rank.steps
        ]  # fmt: skip
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        return f"<{self.source} Report: {self.model.name}, {self.plan}, {self.steps} steps>"

    def __str__(self) -> str:
        from parallab.text import report_text

        return report_text(self)


def mean_loss(losses: Iterable[float | None]) -> float:
    """The global loss: the mean over the ranks that computed one, NaN where none did."""
    known = [loss for loss in losses if loss is not None]
    return statistics.fmean(known) if known else math.nan


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rank_to_dict(rank: Rank) -> dict[str, Any]:
    """A rank as JSON-ready data: JSON knows no NaN, so a loss that is no number is null."""
    data = asdict(rank)
    for step in data["steps"]:
        if step["loss"] is not None and not math.isfinite(step["loss"]):
            step["loss"] = None
    return data


def sent(step: Step, kind: Literal["payload_bytes", "wire_bytes"]) -> int:
    """Bytes of one step over all operations; a receive is its sender's, so it does not count."""
    return sum(getattr(row, kind) for row in step.communication if row.op != "recv")


def total_communication(
    rows: Sequence[Communication],
) -> dict[tuple[str, str], dict[str, int]]:
    """Rows added up over phases: (operation, axis) -> count, payload_bytes and wire_bytes."""
    totals: dict[tuple[str, str], dict[str, int]] = defaultdict(
        lambda: {"count": 0, "payload_bytes": 0, "wire_bytes": 0}
    )
    for row in rows:
        for key in ("count", "payload_bytes", "wire_bytes"):
            totals[row.op, row.axis][key] += getattr(row, key)
    return dict(totals)
