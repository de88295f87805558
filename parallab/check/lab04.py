"""The exercises of 04_tensor: two splits, and the sums between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parallab.check.exercise import Exercise, Verdict, right, wrong
from parallab.check.functions import Returned, function_on
from parallab.check.judges import Slip, number, plan_for
from parallab.check.measure import measured
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.report import Report
from parallab.units import percent

if TYPE_CHECKING:
    from torch import Tensor

LAB = "04_tensor"
RANKS = 4
_MODEL = Model("micro")
_KEEP: dict[str, Any] = {"batch": 8, "seq": 64, "tp": RANKS}
_PLAIN = Plan("tp", **_KEEP)
LESS = 0.8

# x is 2 × 4 and w is 4 × 3: each rank holds one column of x and one row of w.
_X = [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]
_W = [[1.0, 0.0, 2.0], [0.0, 1.0, 1.0], [3.0, 1.0, 0.0], [1.0, 2.0, 1.0]]
_Y = [[sum(x * w for x, w in zip(row, column, strict=True)) for column in zip(*_W, strict=True)]
      for row in _X]  # fmt: skip


def _all_reduces() -> int:
    return measured(_MODEL, _PLAIN).communication(0)["all_reduce", "tp"]["count"]


def _activations(report: Report) -> int:
    return max(rank.peak.at_peak["activations"] for rank in report.ranks)


def _fewer_activations(report: Report) -> tuple[bool, str]:
    mine, plain = _activations(report), _activations(measured(_MODEL, _PLAIN, 3))
    return mine <= LESS * plain, (
        f"activations at the peak are {percent(mine / plain)} of those of plain tensor "
        f"parallelism, and at most {percent(LESS)} are wanted"
    )


def _no_more_bytes(report: Report) -> tuple[bool, str]:
    mine, plain = report.wire_bytes, measured(_MODEL, _PLAIN, 3).wire_bytes
    # The norms' own gradients are summed as well: some kibibytes.
    return mine <= 1.01 * plain, f"a rank sent {mine:,} bytes in a step, and {plain:,} of the plain"


def _judge_rows(returned: list[Returned]) -> Verdict:
    for rank, one in enumerate(returned):
        if one.kind != "tensor":
            return wrong(f"Rank {rank} returned {one.words}; return the tensor of the product.")
        if one.value != _Y:
            part = [[x[rank] * w for w in _W[rank]] for x in _X]
            if one.value == part:
                return wrong(
                    f"Rank {rank} returned its own product, which is a partial sum: the ranks have "
                    "yet to add theirs up."
                )
            return wrong(f"Rank {rank} returned {one.value!r:.80}, and x · w is {_Y}.")
    used = {op: row["count"] for op, row in returned[0].operations.items()}
    if used != {"all_reduce": 1}:
        said = ", ".join(f"{count} {op.replace('_', '-')}" for op, count in used.items())
        return wrong(f"The product is right, for {said}: one all-reduce is enough.")
    return right(
        "Every rank holds the whole product, and sent one all-reduce of "
        f"{returned[0].operations['all_reduce']['payload_bytes']} bytes: the output, whatever the "
        "size of the matrix."
    )


def row_split(x_part: Tensor, w_part: Tensor) -> Tensor:
    """One part of x and of w -> their whole product, on every rank."""
    import torch.distributed as dist

    y = x_part @ w_part
    dist.all_reduce(y)
    return y


EXERCISES = (
    Exercise(
        name="tp-all-reduces",
        lab=LAB,
        question=f"The model micro has {_MODEL.layers} layers. How many all-reduces does a rank "
        f"take part in during one step on tp={RANKS}?",
        judge=number(
            _all_reduces,
            "the all-reduces of a step",
            unit="calls",
            slips=(
                Slip(lambda: 4, "That is one layer."),
                Slip(lambda: 8, "Attention and MLP, each forward: and backward?"),
                Slip(
                    lambda: 4 * _MODEL.layers,
                    "Those are the layers' own. The embedding, the head and the loss are split "
                    "over the vocabulary: what do they have to sum?",
                ),
            ),
            why="four a layer; one for the embedding's output, one for the gradient that leaves "
            "the head, and two small ones for the loss",
        ),
        solution=lambda: 4 * _MODEL.layers + 4,
        hint="Four a layer. Then the embedding once, the head once in its backward pass, and the "
        "loss: the largest logit, then the sums.",
    ),
    Exercise(
        name="row-split",
        lab=LAB,
        question=f"A linear layer split by rows: each of {RANKS} ranks holds one part of the "
        "columns of x and the same part of the rows of w. Write a function of x_part and w_part "
        "that returns the whole product x · w on every rank. torch and dist are there for it.",
        judge=function_on(
            RANKS,
            lambda rank: [[[row[rank]] for row in _X], [_W[rank]]],
            _judge_rows,
            takes="x_part and w_part",
        ),
        solution=lambda: row_split,
        hint="Multiply the parts; what you get is one of four terms of a sum. dist.all_reduce(y) "
        "adds up in place.",
    ),
    Exercise(
        name="fewer-activations",
        lab=LAB,
        question=f"The model micro on tp={RANKS}, batch=8 and seq=64: find a plan that recomputes "
        f"nothing, has at most {percent(LESS)} of the activations of plain tensor parallelism, and "
        "sends no more bytes.",
        judge=plan_for(
            lambda: _MODEL,
            _fewer_activations,
            _no_more_bytes,
            devices=RANKS,
            keep={"strategy": "tp", **_KEEP, "recompute": "none", "precision": "fp32"},
        ),
        solution=lambda: Plan("tp", sequence_parallel=True, **_KEEP),
        hint="What lies between the split layers, norms and residuals, is the same on every rank. "
        "It could be split over the tokens.",
    ),
)
