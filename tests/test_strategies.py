"""Every strategy ends with one device's loss and weights, and sends what theory says."""

from __future__ import annotations

import functools
import statistics
from typing import Any

import pytest
import torch

from parallab.catalog import STRATEGIES
from parallab.models.spec import Model
from parallab.parallel.zero import FlatShards
from parallab.plan import Plan
from parallab.predict.communication import payload_per_step
from parallab.predict.memory import model_states
from parallab.rank.trainer import Trainer
from parallab.rank.verify import verify
from parallab.report import WARM_STEP, sent, total_communication
from tests.ranks import run_ranks

CPU = torch.device("cpu")
SEVERAL = [name for name, row in STRATEGIES.items() if row.axes == ("dp",)]

# Every switch that "nano" leaves off, and sizes that no number of ranks divides.
ODD = dict(
    name="odd", layers=2, hidden=36, heads=6, kv_heads=3, ffn=50, vocab=257, tied=True,
    norm="layer", positions="learned", mlp="plain", activation="gelu", qkv_bias=True,
    out_bias=True, mlp_bias=True,
)  # fmt: skip
QK = dict(
    name="qk", layers=3, hidden=24, heads=4, head_dim=10, kv_heads=1, ffn=30, vocab=256,
    qk_norm=True,
)  # fmt: skip
NANO = dict(name="nano")

PLANS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (NANO, dict(optimizer="adamw", seq=32)),
    (NANO, dict(optimizer="sgd", micro_batches=2, seq=32, recompute="full")),
    (ODD, dict(optimizer="adamw", seq=16, recompute="full")),
    (ODD, dict(optimizer="sgd", seq=16, micro_batches=3)),
    (QK, dict(optimizer="sgd", seq=16)),
    (NANO, dict(precision="bf16", seq=32, micro_batches=2)),
]
WEIGHT_TOLERANCE = {("fp32", "sgd"): 1e-6, ("fp32", "adamw"): 1e-4, ("bf16", "adamw"): 1e-2}
LOSS_TOLERANCE = {"fp32": 1e-6, "bf16": 1e-3}


def _verify_all(rank: int, strategy: str, world_size: int) -> list[dict[str, Any]]:
    return [
        verify(Model(**sizes), Plan(strategy, world_size, **choices), CPU)
        for sizes, choices in PLANS
    ]


def _compare(plan: Plan, ranks: list[dict[str, Any]]) -> tuple[float, float, str]:
    """Largest relative loss error, largest weight difference, and whose it is."""
    losses = [
        statistics.fmean(x for x in step if x is not None)
        for step in zip(*(r["losses"] for r in ranks), strict=True)
    ]
    reference = ranks[0]["reference_losses"]
    loss = max(abs(a / b - 1) for a, b in zip(losses, reference, strict=True))
    name, weight = max((t for r in ranks for t in r["tensors"]), key=lambda t: t[1])
    return loss, weight, name


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("strategy", SEVERAL)
def test_ends_with_one_devices_loss_and_weights(strategy: str, world_size: int) -> None:
    by_rank = run_ranks(_verify_all, world_size, strategy, world_size, deadline_seconds=120)
    for i, (sizes, choices) in enumerate(PLANS):
        plan = Plan(strategy, world_size, **choices)
        loss, weight, name = _compare(plan, [results[i] for results in by_rank])
        assert loss <= LOSS_TOLERANCE[plan.precision], (sizes["name"], plan)
        assert weight <= WEIGHT_TOLERANCE[plan.precision, plan.optimizer], (name, plan)
        assert all(results[i]["finite"] for results in by_rank)


def _verify_without_reduction(rank: int, strategy: str) -> dict[str, Any]:
    def forget(self: FlatShards, unit: Any) -> None:
        gradients = unit.gradients
        size = unit.shard.numel()
        unit.shard.grad = gradients[self.rank * size : (self.rank + 1) * size].clone()

    assert FlatShards._reduce
    FlatShards._reduce = forget  # type: ignore[method-assign]
    return verify(Model("nano"), Plan(strategy, 2, seq=32), CPU)


@pytest.mark.parametrize("strategy", ["zero1", "zero2"])
def test_a_forgotten_reduction_is_seen(strategy: str) -> None:
    by_rank = run_ranks(_verify_without_reduction, 2, strategy)
    loss, weight, _ = _compare(Plan(strategy, 2, seq=32), by_rank)
    assert loss > 1e-4
    assert weight > 1e-3


def test_one_device_agrees_with_itself() -> None:
    found = verify(Model("nano"), Plan("single", micro_batches=2), CPU)
    assert found["losses"] == found["reference_losses"]
    assert {difference for _, difference in found["tensors"]} == {0.0}


def _train(rank: int, sizes: dict[str, Any], strategy: str, choices: dict[str, Any]) -> list[Any]:
    trainer = Trainer(Model(**sizes), Plan(strategy, **choices), CPU)
    steps = [trainer.step() for _ in range(WARM_STEP + 2)]
    trainer.close()
    return steps


COUNTED = [
    (NANO, dict(devices=4, seq=16)),
    (ODD, dict(devices=3, seq=16, micro_batches=2)),
    (NANO, dict(devices=2, seq=16, precision="bf16", recompute="full")),
]


@functools.cache
def _trained(strategy: str, which: int) -> tuple[Model, Plan, list[list[Any]]]:
    sizes, choices = COUNTED[which]
    plan = Plan(strategy, **choices)
    return Model(**sizes), plan, run_ranks(_train, plan.devices, sizes, strategy, choices)


@pytest.mark.parametrize("which", range(len(COUNTED)))
@pytest.mark.parametrize("strategy", SEVERAL)
def test_counted_payload_is_the_closed_form(strategy: str, which: int) -> None:
    model, plan, by_rank = _trained(strategy, which)
    expected = payload_per_step(model, plan)
    for steps in by_rank:
        for step in steps[WARM_STEP:]:
            rows = total_communication(step.communication)
            assert {key: row["payload_bytes"] for key, row in rows.items()} == expected


@pytest.mark.parametrize("which", range(len(COUNTED)))
@pytest.mark.parametrize("strategy", [s for s in SEVERAL if s != "zero1-torch"])
def test_measured_states_are_the_closed_form(strategy: str, which: int) -> None:
    model, plan, by_rank = _trained(strategy, which)
    for rank, steps in enumerate(by_rank):
        states = dict(steps[-1].memory.states)
        del states["buffers"]
        expected = model_states(model, plan, rank)
        # AdamW's step counters: 4 bytes for each tensor that it steps.
        counters = states["optimizer"] - expected["optimizer"]
        assert counters % 4 == 0
        assert 0 <= counters <= 4 * sum(len(unit) for unit in model.units().values())
        states["optimizer"] -= counters
        assert states == expected


# nano has P = 500,992 bytes of fp32 weights, which 4 ranks divide without padding.
PAYLOAD_NANO_4 = {
    "ddp": {"all_reduce": 500_992},
    "zero1": {"reduce_scatter": 500_992, "all_gather": 500_992},
    "zero1-torch": {"all_reduce": 500_992, "broadcast": 500_992},
    "zero2": {"reduce_scatter": 500_992, "all_gather": 500_992},
    "zero3": {"all_gather": 1_001_984, "reduce_scatter": 500_992},
    # 8 × 128 ids of 8 bytes and logits of 256 × 4 bytes.
    "dp": {
        "scatter": 1_056_768, "broadcast": 500_992, "gather": 1_048_576, "reduce": 500_992,
    },
}  # fmt: skip


@pytest.mark.parametrize("strategy", SEVERAL)
def test_payload_of_nano_in_literal_bytes(strategy: str) -> None:
    payload = payload_per_step(Model("nano"), Plan(strategy, 4))
    assert {op: size for (op, _), size in payload.items()} == PAYLOAD_NANO_4[strategy]


def _loss_over(rank: int, steps: int) -> list[float | None]:
    trainer = Trainer(Model("micro"), Plan("zero3", 2, seq=64), CPU)
    return [trainer.step().loss for _ in range(steps)]


def test_the_loss_falls() -> None:
    losses = [statistics.fmean(step) for step in zip(*run_ranks(_loss_over, 2, 30), strict=True)]
    assert losses[0] > 5.0
    assert statistics.fmean(losses[-5:]) < losses[0] - 1.5


def _hot_spot(rank: int) -> tuple[int, int, int]:
    trainer = Trainer(Model("nano"), Plan("dp", 4), CPU)
    step = [trainer.step() for _ in range(2)][-1]
    return step.memory.peak_bytes, sent(step, "wire_bytes"), step.memory.states["optimizer"]


def test_classic_data_parallel_has_its_hot_spot_on_rank_0() -> None:
    first, *others = run_ranks(_hot_spot, 4)
    # Rank 0 holds Adam's moments (8 bytes a parameter) and the whole batch's logits and gradient.
    assert first[2] >= 8 * 125_248
    assert all(optimizer == 0 for _, _, optimizer in others)
    logits_bytes = 8 * 128 * 256 * 4
    assert all(first[0] - peak > 8 * 125_248 + logits_bytes for peak, _, _ in others)


def _workspace(rank: int, strategy: str) -> list[float]:
    trainer = Trainer(Model("nano"), Plan(strategy, 2, seq=32), CPU)
    return [trainer.step() for _ in range(2)][-1].memory.series["workspace"]


@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3"])
def test_little_is_left_unexplained(strategy: str) -> None:
    # The step's batch, which the corpus made, and what Gloo clones while it reduce-scatters: how
    # many units wait in its queue at once is the machine's affair, but never more than all.
    clones = 0 if strategy == "ddp" else 500_992
    for series in run_ranks(_workspace, 2, strategy):
        assert max(series) <= 4096 + clones
