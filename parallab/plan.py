"""How a model is split over devices and how a step runs; every rule about what fits what.

A Plan names the degrees dp x pp x tp and what one step does. All rules live here, so that the
terminal's message, the panel's greyed-out choice and the refusal on an engine are one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from parallab import catalog
from parallab.catalog import DataAxis
from parallab.errors import ParallabError, PlanError
from parallab.spec import Model

Precision = Literal["fp32", "bf16"]
Recompute = Literal["none", "full"]
Optimizer = Literal["adamw", "sgd"]

CHOICES: dict[str, tuple[str, ...]] = {
    "precision": ("fp32", "bf16"),
    "recompute": ("none", "full"),
    "optimizer": ("adamw", "sgd"),
}
MAX_STEPS = 100_000
MAX_SEED = 2**31 - 1
# Beyond these a number is a slip of the finger rather than a plan.
_LIMITS = {"devices": 65_536, "batch": 1_048_576, "seq": 1_048_576, "micro_batches": 65_536}


@dataclass(frozen=True, init=False)
class Plan:
    """One way to train on several devices.

    >>> plan = Plan("zero3", devices=4, batch=8, seq=128)
    >>> plan.dp, plan.zero, plan.rank_batch
    (4, 3, 2)

    Attributes:
        strategy: a row of the catalogue.
        devices: ranks in all; 1 for "single", otherwise 4 unless degrees say more.
        dp, pp, tp: degrees of the data, pipeline and tensor axes; their product is `devices`.
        batch: sequences per step over all ranks; two per rank and micro-batch unless given.
        seq: tokens per sequence.
        micro_batches: parts that a rank's share of the batch is cut into; their gradients add up
            before one optimizer step (gradient accumulation).
        precision: "fp32", or "bf16": weights and gradients in bfloat16, the optimizer keeps the
            fp32 master weights (Micikevicius et al., arXiv:1710.03740, with bf16 for fp16).
        recompute: "full" keeps only each block's input and computes the rest again in backward.
        optimizer: "adamw", or plain "sgd" (no momentum, no state).

    Raises:
        PlanError: a plan that cannot work, with the nearest that does.
    """

    strategy: str
    devices: int
    dp: int
    pp: int
    tp: int
    batch: int
    seq: int
    micro_batches: int
    precision: Precision
    recompute: Recompute
    optimizer: Optimizer

    def __init__(
        self,
        strategy: str = "ddp",
        devices: int | None = None,
        *,
        dp: int | None = None,
        pp: int | None = None,
        tp: int | None = None,
        batch: int | None = None,
        seq: int = 128,
        micro_batches: int = 1,
        precision: Precision = "fp32",
        recompute: Recompute = "none",
        optimizer: Optimizer = "adamw",
    ) -> None:
        row = catalog.strategy(strategy)
        _check_count("seq", seq)
        _check_count("micro_batches", micro_batches)
        for name, value in dict(devices=devices, dp=dp, pp=pp, tp=tp, batch=batch).items():
            if value is not None:
                _check_count(name, value)
        degrees = {"dp": dp, "pp": pp, "tp": tp}
        for axis, degree in degrees.items():
            if degree not in (None, 1) and axis not in row.axes:
                does = f"splits only {' and '.join(row.axes)}" if row.axes else "splits nothing"
                raise PlanError(f"{axis}={degree} does not go with {strategy}, which {does}.")
        if devices is None:
            given = [d for d in degrees.values() if d is not None]
            devices = _product(given) if given else (4 if row.axes else 1)
        if not row.axes and devices != 1:
            raise PlanError(
                f"{strategy} runs on one device, not {devices}; for {devices} devices choose a "
                "strategy such as ddp or zero3."
            )
        if row.axes == ("dp",) and dp is None:
            degrees["dp"] = devices
        dp, pp, tp = (degrees[axis] or 1 for axis in ("dp", "pp", "tp"))
        if dp * pp * tp != devices:
            raise PlanError(
                f"dp={dp} × pp={pp} × tp={tp} is {dp * pp * tp} ranks, but devices={devices}; "
                "the degrees' product must be the number of devices."
            )
        if batch is None:
            batch = 2 * dp * micro_batches
            _check_count("batch", batch)
        values: dict[str, Any] = dict(
            strategy=strategy, devices=devices, dp=dp, pp=pp, tp=tp, batch=batch, seq=seq,
            micro_batches=micro_batches, precision=precision, recompute=recompute,
            optimizer=optimizer,
        )  # fmt: skip
        for name, allowed in CHOICES.items():
            if values[name] not in allowed:
                raise PlanError(f"{name}={values[name]!r} is not one of {', '.join(allowed)}.")
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check_batch()

    def _check_batch(self) -> None:
        parts = self.dp * self.micro_batches
        if self.batch % parts == 0:
            return
        cut = f"{self.dp} data-parallel rank{'s' if self.dp > 1 else ''}"
        if self.micro_batches > 1:
            cut += f" × {self.micro_batches} micro-batches"
        nearest = max(parts, self.batch // parts * parts)
        raise PlanError(
            f"A batch of {self.batch} sequences does not divide over {cut} = {parts} equal parts; "
            f"choose a batch of {nearest} or {nearest + parts}."
        )

    @property
    def data(self) -> DataAxis:
        """What happens on the data axis."""
        return catalog.strategy(self.strategy).data

    @property
    def zero(self) -> int:
        """The ZeRO stage of the data axis, 0 where nothing is sharded."""
        return catalog.strategy(self.strategy).zero

    @property
    def rank_batch(self) -> int:
        """Sequences that one data-parallel rank sees in a step."""
        return self.batch // self.dp

    @property
    def micro_batch(self) -> int:
        """Sequences in one micro-batch of one rank."""
        return self.rank_batch // self.micro_batches

    @property
    def element_bytes(self) -> int:
        """Bytes of one weight, gradient or activation."""
        return 4 if self.precision == "fp32" else 2

    def check(self, model: Model) -> None:
        """Holds the plan against a model.

        Raises:
            PlanError: this model cannot be trained this way.
        """
        if self.seq > model.context:
            raise PlanError(
                f"seq={self.seq} is longer than the {model.context} tokens that {model.name} has "
                f"positions for; choose seq={model.context} or less."
            )

    def alone(self) -> Plan:
        """The plan of one device on the same batch: what `verify` compares with."""
        return replace(
            self, strategy="single", devices=1, dp=1, pp=1, tp=1,
            # One device sees the whole batch; as many micro-batches keep its memory in bounds.
            micro_batches=self.micro_batches,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Every field, and the ZeRO stage, as a Report stores them."""
        return {**asdict(self), "zero": self.zero}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """The inverse of `to_dict`."""
        return cls(**{k: v for k, v in data.items() if k in cls.__dataclass_fields__})

    def __str__(self) -> str:
        degrees = " ".join(f"{a}={getattr(self, a)}" for a in ("dp", "pp", "tp"))
        return (
            f"{self.strategy} on {self.devices} ({degrees}), batch {self.batch} × {self.seq} "
            f"in {self.micro_batches} micro-batch{'es' if self.micro_batches > 1 else ''}, "
            f"{self.precision}, {self.optimizer}"
        )


def why_not(model: Model, **choices: Any) -> str | None:
    """The reason why these choices cannot work, None where they can: what a panel shows greyed."""
    try:
        Plan(**choices).check(model)
    except ParallabError as error:
        return str(error)
    return None


def check_steps(steps: object) -> int:
    """`steps` as a number of training steps.

    Raises:
        PlanError: it is none.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MAX_STEPS:
        raise PlanError(f"steps={steps!r} must be a whole number from 1 to {MAX_STEPS:,}.")
    return steps


def _check_count(name: str, value: object) -> None:
    limit = _LIMITS.get(name, _LIMITS["devices"])
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
        raise PlanError(f"{name}={value!r} must be a whole number from 1 to {limit:,}.")


def _product(numbers: list[int]) -> int:
    product = 1
    for number in numbers:
        product *= number
    return product
