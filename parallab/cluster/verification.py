"""What `Cluster.verify` found: whether a plan trains the same model as a single device does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parallab import html
from parallab.plan import Plan
from parallab.report import mean_loss

# Differences that summing in another order explains; more is a fault. bf16 keeps 8 significant
# bits, so each sum rounds by up to 1/256: over 3 steps, ddp, zero2 and zero3 on small presets
# differed by at most 2.4e-4 of the loss, 0.004 of a weight under AdamW, and 0.05 under SGD, whose
# step is as large as the gradient. The bf16 values are those, with room.
LOSS_TOLERANCE = {"fp32": 1e-6, "bf16": 2e-3}  # relative
# AdamW divides by the gradient's own size, so rounding on a gradient near zero moves the weight by
# a visible part of a step; in fp32, plain SGD does not.
WEIGHT_TOLERANCE = {
    ("fp32", "sgd"): 1e-6, ("fp32", "adamw"): 1e-4,
    ("bf16", "sgd"): 2**-3, ("bf16", "adamw"): 2**-6,
}  # absolute  # fmt: skip


@dataclass(frozen=True)
class Verification(html.Shown):
    """A plan held against one device, on the same text and for the same steps.

    Attributes:
        losses, reference_losses: of each step, of the plan and of the single device.
        tensors: largest absolute difference of each weight over all ranks, in the model's order.
        finite: whether every weight and loss is a number.
    """

    plan: Plan
    losses: tuple[float, ...]
    reference_losses: tuple[float, ...]
    tensors: dict[str, float]
    finite: bool

    @classmethod
    def from_ranks(cls, plan: Plan, ranks: Sequence[Mapping[str, Any]]) -> Verification:
        """Puts together what `parallab.rank.verify.verify` returned on each rank."""
        losses = [mean_loss(step) for step in zip(*(rank["losses"] for rank in ranks), strict=True)]
        tensors: dict[str, float] = {}
        for rank in ranks:  # a pipeline's ranks hold different tensors, in the model's order
            for name, difference in rank["tensors"]:
                tensors[name] = _worse(tensors.get(name, 0.0), difference)
        return cls(
            plan,
            tuple(losses),
            tuple(ranks[0]["reference_losses"]),
            tensors,
            all(rank["finite"] for rank in ranks),
        )

    @property
    def loss_tolerance(self) -> float:
        """The largest relative difference of a loss that counts as the same."""
        return LOSS_TOLERANCE[self.plan.precision]

    @property
    def weight_tolerance(self) -> float:
        """The largest absolute difference of a weight that counts as the same."""
        return WEIGHT_TOLERANCE[self.plan.precision, self.plan.optimizer]

    @property
    def loss_differences(self) -> tuple[float, ...]:
        """Relative difference of each step's loss."""
        pairs = zip(self.losses, self.reference_losses, strict=True)
        return tuple(abs(loss - whole) / (abs(whole) or 1.0) for loss, whole in pairs)

    @property
    def worst_tensor(self) -> tuple[str, float]:
        """The weight with the largest difference, and that difference; NaN is the largest."""
        return max(
            self.tensors.items(), key=lambda item: math.inf if math.isnan(item[1]) else item[1]
        )

    @property
    def first_divergence(self) -> tuple[str, float] | None:
        """The first weight, in the model's order, that differs too much, and by how much.

        Where all weights agree and a loss does not, "the loss of step N". None where all agree.
        """
        for name, difference in self.tensors.items():
            if not difference <= self.weight_tolerance:  # so that NaN fails
                return name, difference
        for step, difference in enumerate(self.loss_differences):
            if not difference <= self.loss_tolerance:
                return f"the loss of step {step}", difference
        return None

    @property
    def ok(self) -> bool:
        """Whether the plan trained the same model."""
        return self.finite and self.first_divergence is None

    def __repr__(self) -> str:
        return f"<Verification: {str(self).splitlines()[0]}>"

    def __str__(self) -> str:
        verdict = "trains the same model as" if self.ok else "does NOT train the same model as"
        lines = [f"{self.plan.strategy} on {self.plan.devices} {verdict} one device.", ""]
        lines.append(f"{'step':>6}  {'loss':>12}  {'one device':>12}  {'relative difference':>20}")
        rows = zip(self.losses, self.reference_losses, self.loss_differences, strict=True)
        for step, (loss, whole, difference) in enumerate(rows):
            lines.append(f"{step:>6}  {loss:>12.6f}  {whole:>12.6f}  {difference:>20.1e}")
        name, worst = self.worst_tensor
        allowed = f"{self.loss_tolerance:.0e} of a loss, {self.weight_tolerance:.0e} of a weight"
        lines += [
            "",
            f"Largest difference of a weight: {worst:.1e} ({name}).",
            f"Allowed: {allowed} ({self.plan.precision}, {self.plan.optimizer}).",
        ]
        if self.plan.precision == "bf16":
            lines.append(
                "bf16 rounds to 8 bits, so this finds gross faults only; fp32 finds small ones."
            )
        if not self.finite:
            lines.append("Some values are not numbers (NaN or infinite).")
        if self.first_divergence is not None:
            name, difference = self.first_divergence
            lines.append(f"First to diverge: {name}, by {difference:.1e}.")
        return "\n".join(lines)


def _worse(one: float, other: float) -> float:
    return math.nan if math.isnan(one) or math.isnan(other) else max(one, other)
