"""The predicted Report: what a plan costs for a model, at once, by closed forms."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Literal

from parallab.models.spec import Model
from parallab.plan import Plan, check_both
from parallab.predict.communication import Collective, collectives
from parallab.predict.peaks import as_memory, highest_moments
from parallab.predict.ranks import ALL_RANKS_UP_TO, kind_of_each, kinds_of_ranks, same_parts
from parallab.predict.traffic import rows_and_traffic
from parallab.report import WARM_STEP, Memory, Rank, Report, Step

Kernels = Literal["cpu", "cuda"]
KERNELS: tuple[Kernels, ...] = ("cpu", "cuda")


def predict(model: Model, plan: Plan, *, kernels: Kernels = "cpu") -> Report:
    """What each rank holds and sends in one warm step.

    Memory is what torch's allocator hands out; what libraries take besides (Gloo's copies, NCCL's
    buffers, the CUDA context) is not in it. No time is predicted here, and no loss.

    Args:
        kernels: "cpu" as measured, or "cuda" with fused kernels, read from torch's sources.

    Returns:
        A Report with one step a rank. `environment["represents"]` says for how many ranks each
        one stands, `environment["estimated"]` what no measured step backs.

    Raises:
        ModelError, PlanError: they are none, or do not go together.
    """
    assert kernels in KERNELS, kernels
    check_both(model, plan)
    if plan.devices <= ALL_RANKS_UP_TO:
        kinds = dict(sorted(kind_of_each(model, plan).items()))
        represents = dict.fromkeys(kinds, 1)
    else:
        represents = kinds_of_ranks(model, plan)
        kinds = {kind: kind for kind in represents}
    # Ranks of a kind hold and send the same, to different neighbours.
    moments = functools.cache(functools.partial(highest_moments, model, plan, kernels=kernels))
    sends = functools.cache(lambda rank: collectives(model, plan, plan.coordinates(rank)))
    return Report(
        source="predicted",
        model=model,
        plan=plan,
        environment={
            "kernels": kernels,
            "represents": {str(rank): number for rank, number in represents.items()},
            "estimated": list(estimates(model, plan, kernels)),
        },
        ranks=[
            _rank(plan, rank, kernels, as_memory(*moments(kind)), sends(_like(model, plan, kind)))
            for rank, kind in kinds.items()
        ],
    )


def _like(model: Model, plan: Plan, rank: int) -> int:
    """A rank that sends as much; ZeRO-3's gathers depend on a rank's order of passes."""
    return rank if plan.data == "zero3" else same_parts(model, plan, rank)


def _rank(plan: Plan, rank: int, kernels: str, memory: Memory, sends: Sequence[Collective]) -> Rank:
    rows, traffic = rows_and_traffic(plan, rank, sends)
    step = Step(
        step=WARM_STEP, loss=None, seconds=None, traced=True, memory=memory,
        communication=rows, traffic=traffic,
    )  # fmt: skip
    return Rank(rank, plan.coordinates(rank), kernels, "", [step])


def estimates(model: Model, plan: Plan, kernels: str) -> Iterator[str]:
    """What of a prediction no measured step backs, in words."""
    if kernels == "cuda":
        yield "activations: fused CUDA kernels are read from torch's sources, not measured"
        if plan.precision == "fp32" and model.kv_heads < model.heads:
            yield "activations: torch has no fused fp32 kernel for grouped queries, and takes more"
    if model.why_not_trainable:
        yield f"activations: {model.why_not_trainable.partition(':')[0]}"
