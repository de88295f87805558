"""What classic data parallelism holds (`parallel.data.ClassicDataParallel`): rank 0, the hot spot.

With n ranks it has n shares of the logits: as they arrive, joined, as logarithms of probabilities
in fp32, and in backward as gradients. The joined ones and their gradient stay until its own
backward pass is over, since the loss still knows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from parallab.plan import Plan
from parallab.predict.activations.layers import Sizes
from parallab.predict.stage import Stage

Moments = Iterator[tuple[Mapping[str, int], ...]]


def forward(plan: Plan, sizes: Sizes, stage: Stage, root: bool) -> Moments:
    """The highest moments of the forward pass, each as parts that add up.

    Args:
        root: whether this is rank 0 of the data axis.
    """
    ids = _ids(plan, sizes, root)
    yield stage.forward[0], ids
    if root:
        output = {"activations": stage.output_bytes}
        everyones, wide = plan.dp * stage.output_bytes, _wide(plan, sizes)
        gathered = {
            "activations": everyones + wide,
            "communication": everyones,
            "temporary": wide if sizes.element < 4 else 0,
        }
        yield from _while_waiting(plan, stage, output, ids, gathered)


def backward(plan: Plan, sizes: Sizes, stage: Stage, root: bool) -> Moments:
    """The same of the backward pass: first the loss, on rank 0, then the model."""
    ids = _ids(plan, sizes, root)
    output = {"activations": stage.output_bytes, "communication": stage.output_bytes}
    if not root:
        yield stage.backward[0], output, ids
        return
    everyones, wide = plan.dp * stage.output_bytes, _wide(plan, sizes)
    loss = {"activations": stage.output_bytes + everyones + wide, "temporary": 2 * wide}
    yield from _while_waiting(plan, stage, loss, ids)
    joined = {"activations": everyones, "communication": everyones}
    for later in range(1 if plan.micro_batches == 1 else 2):
        yield stage.backward[later], output, joined, ids


def _while_waiting(plan: Plan, stage: Stage, *parts: Mapping[str, int]) -> Moments:
    """While the model's activations and the gradients of earlier micro-batches wait."""
    kept = {"activations": stage.kept_bytes, "workspace": stage.kept_workspace_bytes}
    gradients = stage.sharing.forward(0, plan.micro_batches > 1)._asdict()
    yield (kept, gradients, *parts)


def _wide(plan: Plan, sizes: Sizes) -> int:
    """Everyone's logits in fp32."""
    return 4 * plan.dp * sizes.tokens * sizes.vocab


def _ids(plan: Plan, sizes: Sizes, root: bool) -> Mapping[str, int]:
    """Token ids: rank 0 hands out the batch and keeps its part, the others receive one."""
    if not root:
        return {"communication": 8 * plan.rank_batch * plan.seq}
    return {"communication": 8 * sizes.tokens}
