"""How a model is split over devices and how a step runs; every rule about what fits what.

A Plan names the degrees dp x pp x tp and what one step does. All rules live here, so that the
terminal's message, the panel's greyed-out choice and the refusal on an engine are one sentence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from parallab import catalog, html
from parallab.catalog import DataAxis
from parallab.errors import ModelError, ParallabError, PlanError
from parallab.models.spec import Model
from parallab.stages import SCHEDULES, ZERO_BUBBLE, stage_count

Schedule = Literal["gpipe", "1f1b", "loopedbfs", "interleaved", "zb", "zbv", "dualpipev"]
Precision = Literal["fp32", "bf16"]
Recompute = Literal["none", "full"]
Optimizer = Literal["adamw", "sgd"]

CHOICES: dict[str, tuple[str, ...]] = {
    "schedule": SCHEDULES,
    "precision": ("fp32", "bf16"),
    "recompute": ("none", "full"),
    "optimizer": ("adamw", "sgd"),
}
MAX_STEPS = 100_000
MAX_SEED = 2**31 - 1
# Beyond these a number is a slip of the finger rather than a plan.
_LIMITS = {"devices": 65_536, "batch": 1_048_576, "seq": 1_048_576, "micro_batches": 65_536}


@dataclass(frozen=True, init=False)
class Plan(html.Shown):
    """One way to train on several devices.

    >>> plan = Plan("zero3", devices=4, batch=8, seq=128)
    >>> plan.dp, plan.zero, plan.rank_batch
    (4, 3, 2)

    Attributes:
        strategy: a row of the catalogue.
        devices: ranks in all; 1 for "single", otherwise 4 unless degrees say more.
        dp, pp, tp: degrees of the data, pipeline and tensor axes; their product is `devices`.
        zero: ZeRO stage of the data axis; "dp+pp" and "3d" may choose, the others have their own.
        batch: sequences per step over all ranks; two per rank and micro-batch unless given.
        seq: tokens per sequence.
        micro_batches: parts that a rank's share of the batch is cut into; their gradients add up
            before one optimizer step (gradient accumulation), and they are what a pipeline passes
            on. Twice the pipeline's ranks unless given, one without a pipeline.
        schedule: in which order a pipeline's ranks work on its micro-batches.
        sequence_parallel: split norms and residuals over the tensor axis too.
        precision: "fp32", or "bf16": weights and gradients in bfloat16, the optimizer keeps the
            fp32 master weights (Micikevicius et al., arXiv:1710.03740, with bf16 for fp16).
        recompute: "full" keeps only each block's input and computes the rest again in backward.
        optimizer: "adamw", or plain "sgd" (no momentum, no state).
        clip: scale the gradients down to this global norm where theirs is larger; None leaves them.

    Raises:
        PlanError: a plan that cannot work, with the nearest that does.
    """

    strategy: str
    devices: int
    dp: int
    pp: int
    tp: int
    zero: int
    batch: int
    seq: int
    micro_batches: int
    schedule: Schedule
    sequence_parallel: bool
    precision: Precision
    recompute: Recompute
    optimizer: Optimizer
    clip: float | None

    def __init__(
        self,
        strategy: str = "ddp",
        devices: int | None = None,
        *,
        dp: int | None = None,
        pp: int | None = None,
        tp: int | None = None,
        zero: int | None = None,
        batch: int | None = None,
        seq: int = 128,
        micro_batches: int | None = None,
        schedule: Schedule = "1f1b",
        sequence_parallel: bool = False,
        precision: Precision = "fp32",
        recompute: Recompute = "none",
        optimizer: Optimizer = "adamw",
        clip: float | None = None,
    ) -> None:
        row = catalog.strategy(strategy)
        _check_count("seq", seq)
        counts = dict(
            devices=devices, dp=dp, pp=pp, tp=tp, batch=batch, micro_batches=micro_batches
        )
        for name, count in counts.items():
            if count is not None:
                _check_count(name, count)
        devices, degrees = _degrees(row, devices, {"dp": dp, "pp": pp, "tp": tp})
        pipelined = degrees["pp"] > 1 and strategy != "mp"
        if micro_batches is None:
            micro_batches = 2 * degrees["pp"] if pipelined else 1
        if batch is None:
            batch = 2 * degrees["dp"] * micro_batches
            _check_count("batch", batch)
        values: dict[str, Any] = dict(
            strategy=strategy, devices=devices, **degrees, zero=_stage(row, zero), batch=batch,
            seq=seq, micro_batches=micro_batches,
            schedule="gpipe" if strategy == "mp" else schedule,
            sequence_parallel=sequence_parallel, precision=precision, recompute=recompute,
            optimizer=optimizer, clip=clip,
        )  # fmt: skip
        for name, allowed in CHOICES.items():
            if values[name] not in allowed:
                raise PlanError(f"{name}={values[name]!r} is not one of {', '.join(allowed)}.")
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check_batch()
        self._check_pipeline()
        self._check_rest()

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

    def _check_pipeline(self) -> None:
        m, pp, schedule = self.micro_batches, self.pp, self.schedule
        if self.strategy == "mp" and m != 1:
            raise PlanError(
                f"mp sends the whole batch through in one piece, not in {m} micro-batches; choose "
                "pp for a pipeline."
            )
        if pp == 1 or self.strategy == "mp":
            return
        least = {"1f1b": pp, "dualpipev": 2 * pp}.get(schedule, 1)
        if m < least:
            raise PlanError(
                f"The schedule {schedule} on pp={pp} needs at least {least} micro-batches, not "
                f"{m}; choose {least} or more, or the schedule gpipe."
            )
        rounds = max(1, m // pp)
        if schedule in ("interleaved", "zb") and m % rounds:
            fits = [n for n in range(1, 4 * pp + 1) if n % max(1, n // pp) == 0]
            raise PlanError(
                f"The schedule {schedule} on pp={pp} works in rounds of {pp} micro-batches, and "
                f"{m} do not divide into {rounds}; choose one of {', '.join(map(str, fits[-6:]))}."
            )
        if schedule in ZERO_BUBBLE and self.recompute != "none":
            raise PlanError(
                f"The schedule {schedule} halves the backward pass, and torch would compute each "
                "block again for each of its weights and keep it: more time and more memory than "
                "without recomputing. Choose recompute='none', or the schedule interleaved."
            )
        if schedule in ZERO_BUBBLE and self.dp > 1 and self.zero >= 2:
            raise PlanError(
                f"ZeRO-{self.zero} reduces gradients as each backward pass ends, and the schedule "
                f"{schedule} computes the weights' gradients later: it would train on wrong "
                "gradients. Choose zero=1, or the schedule interleaved."
            )

    def _check_rest(self) -> None:
        if self.clip is not None and not (_is_number(self.clip) and 0 < self.clip < math.inf):
            raise PlanError(f"clip={self.clip!r} is no norm; choose a number above 0, such as 1.0.")
        if not isinstance(self.sequence_parallel, bool):
            raise PlanError(f"sequence_parallel={self.sequence_parallel!r} must be True or False.")
        if self.sequence_parallel and self.tp == 1:
            raise PlanError("sequence_parallel splits over the tensor axis, and tp is 1.")
        if self.sequence_parallel and self.seq % self.tp:
            fits = -(-self.seq // self.tp) * self.tp
            raise PlanError(
                f"sequence_parallel cuts seq={self.seq} into tp={self.tp} equal parts; choose "
                f"seq={fits}."
            )

    @property
    def data(self) -> DataAxis:
        """What happens on the data axis."""
        own = catalog.strategy(self.strategy).data
        if self.dp == 1:
            return "none"
        return catalog.STAGES[self.zero] if own in catalog.STAGES else own

    def coordinates(self, rank: int) -> dict[str, int]:
        """A rank's place on each axis: tp varies fastest, then dp, then pp.

        Tensor-parallel neighbours talk most and pipeline neighbours least.
        """
        return {
            "dp": rank // self.tp % self.dp,
            "pp": rank // (self.tp * self.dp),
            "tp": rank % self.tp,
        }

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
        self._check_layers(model)
        if self.tp > 1 and (model.experts or model.kv_rank):
            raise PlanError(
                f"{model.name} has {'experts' if model.experts else 'latent attention'}, which the "
                "tensor axis does not split; choose tp=1."
            )

    def _check_layers(self, model: Model) -> None:
        stages = stage_count(self.pp, self.schedule)
        if model.layers < stages:
            most = max(1, model.layers * self.pp // stages)
            raise PlanError(
                f"{model.name} has {model.layers} layers, fewer than the {stages} stages of "
                f"{self.schedule} on pp={self.pp}; choose pp={most} or less."
            )
        rows = -(-model.vocab // self.tp)
        if rows * (self.tp - 1) >= model.vocab:
            raise PlanError(
                f"{model.name} has a vocabulary of {model.vocab}, and in parts of {rows} the last "
                f"of tp={self.tp} ranks would get none; choose a smaller tp."
            )
        for name in ("heads", "kv_heads", "ffn"):
            size = getattr(model, name)
            if size % self.tp:
                sizes = (model.heads, model.kv_heads, model.ffn)
                fits = [t for t in range(1, model.kv_heads + 1) if not any(n % t for n in sizes)]
                raise PlanError(
                    f"{model.name} has {name}={size}, which does not divide by tp={self.tp}; tp "
                    f"may be {', '.join(map(str, fits))}."
                )

    def alone(self) -> Plan:
        """The plan of one device on the same batch: what `verify` compares with."""
        # As many micro-batches keep its memory in bounds.
        return Plan(
            "single", batch=self.batch, seq=self.seq, micro_batches=self.micro_batches,
            precision=self.precision, recompute=self.recompute, optimizer=self.optimizer,
            clip=self.clip,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Every field, as a Report stores them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """The inverse of `to_dict`."""
        return cls(**{k: v for k, v in data.items() if k in cls.__dataclass_fields__})

    def __repr__(self) -> str:
        """What makes this plan again: what is not usual for its strategy and devices."""
        axes = catalog.strategy(self.strategy).axes
        shown = {"devices": self.devices, **{a: getattr(self, a) for a in axes if len(axes) > 1}}
        usual = Plan(self.strategy, **shown).to_dict()
        shown |= {name: value for name, value in self.to_dict().items() if value != usual[name]}
        return f"Plan({self.strategy!r}, {', '.join(f'{n}={v!r}' for n, v in shown.items())})"

    def __str__(self) -> str:
        degrees = " ".join(f"{a}={getattr(self, a)}" for a in ("dp", "pp", "tp"))
        parts = [f"{self.strategy} on {self.devices} ({degrees})"]
        if len(catalog.strategy(self.strategy).axes) > 1 and self.dp > 1 and self.zero:
            parts.append(f"ZeRO-{self.zero}")
        if self.pp > 1 and self.strategy != "mp":
            parts.append(self.schedule)
        if self.sequence_parallel:
            parts.append("sequence parallel")
        plural = "es" if self.micro_batches > 1 else ""
        parts += [
            f"batch {self.batch:,} × {self.seq:,} in {self.micro_batches:,} micro-batch{plural}",
            self.precision,
            self.optimizer,
        ]
        if self.recompute != "none":
            parts.append("recomputing")
        if self.clip is not None:
            parts.append(f"clipped to {self.clip:g}")
        return ", ".join(parts)


def why_not(model: Model, **choices: Any) -> str | None:
    """The reason why these choices cannot work, None where they can: what a panel shows greyed."""
    try:
        Plan(**choices).check(model)
    except ParallabError as error:
        return str(error)
    return None


def check_both(model: object, plan: object) -> None:
    """Holds what was given as a plan against what was given as a model.

    Raises:
        ModelError: the one is no Model; PlanError: the other is no Plan, or does not go with it.
    """
    if not isinstance(model, Model):
        raise ModelError(f"model={model!r} is not a Model; Model('nano') would be one.")
    if not isinstance(plan, Plan):
        raise PlanError(f"plan={plan!r} is not a Plan; Plan('ddp', devices=4) would be one.")
    plan.check(model)


def check_steps(steps: object) -> int:
    """`steps` as a number of training steps.

    Raises:
        PlanError: it is none.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MAX_STEPS:
        raise PlanError(f"steps={steps!r} must be a whole number from 1 to {MAX_STEPS:,}.")
    return steps


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_count(name: str, value: object) -> None:
    limit = _LIMITS.get(name, _LIMITS["devices"])
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
        raise PlanError(f"{name}={value!r} must be a whole number from 1 to {limit:,}.")


def _degrees(
    row: catalog.Strategy, devices: int | None, given: dict[str, int | None]
) -> tuple[int, dict[str, int]]:
    """Devices and degrees from what was given.

    What was not is 2 where that divides the devices, and the strategy's first axis takes the rest.
    """
    for axis, degree in given.items():
        if degree not in (None, 1) and axis not in row.axes:
            does = f"splits only {' and '.join(row.axes)}" if row.axes else "splits nothing"
            raise PlanError(f"{axis}={degree} does not go with {row.name}, which {does}.")
    known = {axis: degree for axis, degree in given.items() if degree is not None}
    missing = [axis for axis in row.axes if axis not in known]
    if devices is None:
        usual = math.prod(known.values()) * 2 ** len(missing)
        devices = usual if known or len(row.axes) > 1 else (4 if row.axes else 1)
    if not row.axes and devices != 1:
        raise PlanError(
            f"{row.name} runs on one device, not {devices}; for {devices} devices choose a "
            "strategy such as ddp or zero3."
        )
    for axis in reversed(missing):
        rest = max(1, devices // math.prod(known.values()))
        known[axis] = rest if axis == missing[0] else 1 + (rest % 2 == 0)
    degrees = {axis: known.get(axis, 1) for axis in given}
    product = math.prod(degrees.values())
    if product != devices:
        raise PlanError(
            f"dp={degrees['dp']} × pp={degrees['pp']} × tp={degrees['tp']} is {product} ranks, but "
            f"devices={devices}; the degrees' product must be the number of devices."
        )
    return devices, degrees


def _stage(row: catalog.Strategy, zero: int | None) -> int:
    """The ZeRO stage: the strategy's own, or the one that was chosen for a composition."""
    if zero is None:
        return row.zero
    if isinstance(zero, bool) or zero not in range(len(catalog.STAGES)):
        raise PlanError(f"zero={zero!r} is not a ZeRO stage; stages are 0, 1, 2 and 3.")
    if len(row.axes) < 2 and zero != row.zero:
        raise PlanError(
            f"{row.name} has ZeRO stage {row.zero}, not {zero}; choose the strategy "
            f"{'zero' + str(zero) if zero else 'ddp'}, or a composition such as 3d."
        )
    return zero
