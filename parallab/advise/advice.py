"""What `advise` answers: plain data, and the same as text.

Every need is of the rank that has least to spare, and counts all that is predicted: weights,
gradients, optimizer state, activations and buffers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from parallab import html
from parallab.hardware import Hardware
from parallab.models.spec import Model
from parallab.plan import Optimizer, Plan, Precision
from parallab.predict.time import StepTime
from parallab.units import GIB, gib, percent, three_figures

SOURCE = "Hugging Face, Efficient training on multiple GPUs, scalability strategy"
HERE = "this machine"


@dataclass(frozen=True)
class Rule:
    """What the field's table says.

    Attributes:
        situation: the row of the table.
        strategies: names of the catalogue, those that the row names.
        reason: the computed bytes that decide it, in a sentence.
    """

    situation: str
    strategies: tuple[str, ...]
    reason: str
    source: str = SOURCE

    def __str__(self) -> str:
        return f"{self.situation}\n  {self.reason}"


@dataclass(frozen=True)
class Option:
    """A plan that fits.

    Attributes:
        family: what a person calls it.
        need_bytes: the peak of the rank that has least to spare.
        room_bytes: what its GPU has, less the headroom.
        step: the estimated time, part by part.
        reason: what speaks for it and against it.
    """

    family: str
    plan: Plan
    need_bytes: int
    room_bytes: int
    step: StepTime
    reason: str


@dataclass(frozen=True)
class Rejection:
    """A family of which no plan fits: the one that needs least, and what it needs."""

    family: str
    plan: Plan
    need_bytes: int
    room_bytes: int

    @property
    def reason(self) -> str:
        """The number that rules it out."""
        need, room = gib(self.need_bytes), gib(self.room_bytes)
        return f"{self.family} needs {need} of {room}: {describe(self.plan)}"


@dataclass(frozen=True)
class Advice(html.Shown):
    """The answer of `advise`.

    Attributes:
        rule: the field's first answer.
        options: plans that fit, the fastest first.
        slower: the best plan of each other family that fits.
        rejections: families that do not fit, the nearest first.
        impossible: why other degrees cannot be, or do not help.
        remedy: what would help where nothing fits.
        considered: plans that were compared.
    """

    model: Model
    hardware: Hardware
    batch: int
    seq: int
    precision: Precision
    optimizer: Optimizer
    rule: Rule
    options: tuple[Option, ...]
    slower: tuple[Option, ...]
    rejections: tuple[Rejection, ...]
    impossible: tuple[str, ...]
    remedy: str | None
    considered: int

    @property
    def best(self) -> Option | None:
        """The fastest plan that fits; None where none does."""
        return self.options[0] if self.options else None

    def kind(self, family: str) -> Option:
        """The fastest of one family that fits, by what a person calls it: "ZeRO-3", "tensor".

        Raises:
            ValueError: none of it is here.
        """
        here = {option.family: option for option in (*self.slower, *reversed(self.options))}
        if family not in here:
            raise ValueError(f"No plan of {family!r} is here; there are {', '.join(here)}.")
        return here[family]

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "model": self.model.to_dict(),
            "hardware": self.hardware.to_dict(),
            "task": {
                name: getattr(self, name) for name in ("batch", "seq", "precision", "optimizer")
            },
            "rule": asdict(self.rule),
            "options": [_option_dict(option) for option in self.options],
            "slower": [_option_dict(option) for option in self.slower],
            "rejections": [
                {**asdict(rejection), "reason": rejection.reason} for rejection in self.rejections
            ],
            "impossible": list(self.impossible),
            "remedy": self.remedy,
            "considered": self.considered,
        }

    def __repr__(self) -> str:
        best = f"{self.best.family}: {describe(self.best.plan)}" if self.best else "nothing fits"
        kind = "ranks" if self.hardware.gpu.name == HERE else "GPUs"
        return f"<Advice: {self.model.name} on {self.hardware.devices:,} {kind}, {best}>"

    def __str__(self) -> str:
        parts = ["\n".join(title(self)), str(self.rule)]
        if self.options:
            lines = [line for i, o in enumerate(self.options) for line in _lines(o, f"{i + 1:>2}.")]
            heading = "Plans that fit, the fastest first by estimate, within 2 % the simpler first"
            parts.append("\n".join([heading, *lines]))
        if self.slower:
            lines = [line for option in self.slower for line in _lines(option, "  -")]
            parts.append("\n".join(["The best of the other kinds that fit", *lines]))
        parts.append("\n".join(refused(self)))
        return "\n\n".join(part for part in [*parts, self.remedy] if part)


def describe(plan: Plan) -> str:
    """What tells a plan from others for the same task."""
    parts = [f"{axis}={getattr(plan, axis)}" for axis in ("dp", "pp", "tp")
             if getattr(plan, axis) > 1]  # fmt: skip
    words = [" ".join(parts)] if parts else []
    if plan.pp > 1:
        words.append(plan.schedule)
    if plan.sequence_parallel:
        words.append("sequence parallel")
    plural = "es" if plan.micro_batches > 1 else ""
    words.append(f"{plan.micro_batches} micro-batch{plural} of {plan.micro_batch}")
    if plan.recompute == "full":
        words.append("recomputing")
    return ", ".join(words)


def title(advice: Advice) -> list[str]:
    """What was asked: model and hardware, the batch, the room; a line each."""
    hardware, tokens = advice.hardware, advice.batch * advice.seq
    here = hardware.gpu.name == HERE
    where = f"{hardware.devices} ranks on this machine" if here else str(hardware)
    lines = [
        f"{advice.model} on {where}",
        f"{advice.batch:,} sequences of {advice.seq:,} tokens a step = {tokens:,} tokens, "  # noqa: ISC004
        f"{advice.precision}, {advice.optimizer}",
        f"{_rooms(hardware)} to fill of each (headroom {percent(hardware.headroom)}); "  # noqa: ISC004
        f"{advice.considered:,} plans compared",
    ]
    return lines + cautions(advice)


def cautions(advice: Advice) -> list[str]:
    """What the estimated times rest on, where it is not a data sheet's figure."""
    gpu = advice.hardware.gpu
    lines = []
    if advice.precision == "bf16" and not gpu.has_bf16:
        lines.append(f"{gpu.title} has no bf16 units: its speed is float16's.")
    if gpu.name == HERE:
        lines.append("Speeds are assumed, not known: trust the order more than the seconds.")
    return lines


def _rooms(hardware: Hardware) -> str:
    least, most = min(hardware.room_bytes), max(hardware.room_bytes)
    if least == most:
        return gib(least)
    return f"{least / GIB:,.1f} to {gib(most)}" if most >= GIB else f"{gib(least)} to {gib(most)}"


def _lines(option: Option, mark: str) -> list[str]:
    step = option.step
    pace = step.tokens_per_second / step.devices
    figures = (
        f"{gib(option.need_bytes)} of {gib(option.room_bytes)}",
        f"{three_figures(step.seconds)} s",
        f"{pace:,.0f} tokens/s each",
        f"{percent(step.utilization)} of the peak",
    )
    return [
        f"{mark} {option.family}: {describe(option.plan)}",
        f"    {', '.join(figures)}; {option.reason}",
    ]


def refused(advice: Advice) -> list[str]:
    """What does not fit, a line for each way to split, and what cannot be."""
    if not advice.rejections and not advice.impossible:
        return []
    rooms = {rejection.room_bytes for rejection in advice.rejections}
    groups: dict[str, list[str]] = {}
    for rejection in advice.rejections:
        axes, _, kind = rejection.family.rpartition(", ")
        of = f" of {gib(rejection.room_bytes)}" if len(rooms) > 1 else ""
        groups.setdefault(axes, []).append(f"{kind} needs {gib(rejection.need_bytes)}{of}")
    of = f" of {gib(rooms.pop())}" if len(rooms) == 1 else ""
    lines = ["What does not work" + (f", and the least that it takes{of}" if groups else "")]
    for axes, needs in sorted(groups.items()):
        lines.append(f"  - {axes + ': ' if axes else ''}{', '.join(needs)}")
    return lines + [f"  - {sentence}" for sentence in advice.impossible]


def _option_dict(option: Option) -> dict[str, Any]:
    return {**asdict(option), "plan": option.plan.to_dict(), "step": option.step.to_dict()}
