"""The exercises of 01_data_parallel: DataParallel against DDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallab.check.exercise import Exercise, Verdict, right, wrong
from parallab.check.functions import Returned, function_on
from parallab.check.judges import Slip, number
from parallab.check.measure import measured
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.report import Report

if TYPE_CHECKING:
    from torch import Tensor

LAB = "01_data_parallel"
RANKS = 4
_MODEL = Model("micro")
_DDP = Plan("ddp", devices=RANKS)
# One row a rank: eight numbers that tell the ranks apart.
_ROWS = [[float(10**rank + i) for i in range(8)] for rank in range(RANKS)]


def _ddp() -> Report:
    return measured(_MODEL, _DDP)


def _judge_all_reduce(returned: list[Returned]) -> Verdict:
    wanted = [sum(column) for column in zip(*_ROWS, strict=True)]
    for rank, one in enumerate(returned):
        if one.kind != "tensor":
            return wrong(f"Rank {rank} returned {one.words}; return the tensor of sums.")
        if one.value != wanted:
            return wrong(
                f"Rank {rank} returned {_row(one.value)}, and the sum over the ranks is "
                f"{_row(wanted)}."
            )
    used = returned[0].operations
    said = ", ".join(f"{row['count']} {op.replace('_', '-')}" for op, row in used.items())
    if set(used) != {"reduce_scatter", "all_gather"}:
        return wrong(
            f"The sums are right, but rank 0 was seen to call {said or 'nothing'}: use a "
            "reduce-scatter and an all-gather, and nothing else."
        )
    payload = sum(row["payload_bytes"] for row in used.values())
    return right(
        f"Every rank holds the sums, and rank 0 called {said} with {payload} bytes of payload: on "
        "a ring, what a single all-reduce would have sent."
    )


def _row(values: object) -> str:
    return f"{values!r:.80}"


def all_reduce(x: Tensor) -> Tensor:
    """A rank's tensor -> the sum over all ranks."""
    import torch.distributed as dist

    part = x.new_empty(len(x) // dist.get_world_size())
    dist.reduce_scatter_tensor(part, x)
    whole = x.new_empty(len(x))
    dist.all_gather_into_tensor(whole, part)
    return whole


EXERCISES = (
    Exercise(
        name="ddp-payload-bytes",
        lab=LAB,
        question="DDP trains the model micro on four devices. How many bytes does a rank hand to "
        "all-reduce in one step? (Payload: the tensors themselves, not what the ring sends for "
        "them.)",
        judge=number(
            lambda: _ddp().payload_bytes,
            "the payload of a step of ddp",
            unit="bytes",
            within=0.001,
            slips=(
                Slip(lambda: _MODEL.parameters, "That is the number of gradients, not of bytes."),
                Slip(
                    lambda: _ddp().wire_bytes,
                    "That is what an ideal ring sends for it: 2 (n − 1) / n times the payload.",
                ),
                Slip(
                    lambda: 2 * _ddp().payload_bytes,
                    "Gradients are reduced once a step; the weights do not travel at all.",
                ),
                Slip(
                    lambda: _ddp().payload_bytes / RANKS,
                    "Each rank has a gradient for every weight, not for a quarter of them.",
                ),
            ),
            why="one gradient of 4 bytes for each parameter, whatever the batch",
        ),
        solution=lambda: 4 * _MODEL.parameters,
        hint="What is averaged, how many of them are there (model.parameters), and how many bytes "
        "has each in fp32?",
    ),
    Exercise(
        name="all-reduce",
        lab=LAB,
        question="Write the all-reduce as a reduce-scatter and an all-gather. Your function gets "
        "this rank's tensor of eight numbers, and returns the sum over the four ranks, all eight "
        "numbers on every rank. torch and dist (torch.distributed) are there for it.",
        judge=function_on(
            RANKS,
            lambda rank: [_ROWS[rank]],
            _judge_all_reduce,
            takes="one tensor, of eight numbers",
        ),
        solution=lambda: all_reduce,
        hint="dist.reduce_scatter_tensor(part, x) fills part, a quarter as long as x, with the "
        "sums of this rank's quarter; dist.all_gather_into_tensor(whole, part) puts the quarters "
        "together. x.new_empty(n) makes room.",
    ),
)
