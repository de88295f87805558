"""Predicted memory against steps that ran: states and collectives to the byte, peaks within 2 %.

The shapes here are none of those that the formulas were found with.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from parallab.meter import Meter
from parallab.plan import Plan
from parallab.predict import predict
from parallab.predict.memory import model_states
from parallab.rank.trainer import Trainer
from parallab.report import WARM_STEP, Rank, Step
from parallab.spec import Model
from tests.ranks import run_ranks

CPU = torch.device("cpu")
LLAMA = dict(name="llama-like", layers=5, hidden=72, heads=6, kv_heads=3, ffn=184, vocab=331)
GPT = dict(
    name="gpt-like", layers=6, hidden=56, heads=4, kv_heads=4, ffn=224, vocab=420, tied=True,
    norm="layer", positions="learned", mlp="plain", activation="gelu", qkv_bias=True,
    out_bias=True, mlp_bias=True, context=160,
)  # fmt: skip
QWEN = dict(
    name="qwen-like", layers=8, hidden=64, heads=4, kv_heads=2, head_dim=20, ffn=112, vocab=700,
    qk_norm=True, qkv_bias=True,
)  # fmt: skip

Case = tuple[dict[str, Any], dict[str, Any]]


def on(devices: int, strategy: str, **choices: Any) -> dict[str, Any]:
    """A plan's choices; twelve sequences of 48 tokens."""
    return dict(strategy=strategy, devices=devices, batch=12, seq=48) | choices


CASES: dict[int, list[Case]] = {
    1: [
        (LLAMA, on(1, "single")),
        (LLAMA, on(1, "single", batch=1, seq=160)),
        (GPT, on(1, "single", precision="bf16")),
        (GPT, on(1, "single", micro_batches=3, clip=1.0)),
        (QWEN, on(1, "single", recompute="full")),
        (QWEN, on(1, "single", recompute="full", precision="bf16", micro_batches=2)),
        (QWEN, on(1, "single", batch=2, seq=16, optimizer="sgd")),
    ],
    2: [
        (LLAMA, on(2, "dp")),
        (GPT, on(2, "dp", micro_batches=2, precision="bf16")),
        (LLAMA, on(2, "ddp")),
        (GPT, on(2, "ddp", micro_batches=3, recompute="full")),
        (QWEN, on(2, "ddp", precision="bf16", optimizer="sgd")),
        (LLAMA, on(2, "zero1")),
        (GPT, on(2, "zero1", precision="bf16", micro_batches=2)),
        (QWEN, on(2, "zero1-torch", batch=2)),
        (LLAMA, on(2, "zero2", micro_batches=3)),
        (GPT, on(2, "zero2", batch=2, seq=24)),
        (QWEN, on(2, "zero2", recompute="full", precision="bf16")),
        (LLAMA, on(2, "zero3", batch=2, seq=24)),
        (GPT, on(2, "zero3", micro_batches=2, precision="bf16")),
        (QWEN, on(2, "zero3", recompute="full", optimizer="sgd")),
        (GPT, on(2, "tp")),
        (QWEN, on(2, "tp", recompute="full", micro_batches=2, precision="bf16")),
        (GPT, on(2, "tp", sequence_parallel=True, batch=1)),
        (QWEN, on(2, "tp", sequence_parallel=True)),
        (GPT, on(2, "mp")),
        (LLAMA, on(2, "pp", micro_batches=6, schedule="gpipe")),
        (GPT, on(2, "pp", micro_batches=6, precision="bf16")),
        (QWEN, on(2, "pp", micro_batches=4, recompute="full")),
        (GPT, on(2, "pp", micro_batches=12, schedule="loopedbfs")),
        (LLAMA, on(2, "pp", micro_batches=6, schedule="interleaved", optimizer="sgd")),
        (GPT, on(2, "pp", micro_batches=4, schedule="zb", precision="bf16")),
        (QWEN, on(2, "pp", micro_batches=6, schedule="zbv")),
        (GPT, on(2, "pp", micro_batches=6, schedule="dualpipev")),
    ],
    3: [
        (LLAMA, on(3, "zero1", optimizer="sgd")),
        (QWEN, on(3, "zero2", precision="bf16", micro_batches=2)),
        (LLAMA, on(3, "zero3")),
        (GPT, on(3, "zero1-torch")),
    ],
    4: [
        (QWEN, on(4, "pp", micro_batches=6)),
        (QWEN, on(4, "pp", micro_batches=12, schedule="interleaved", precision="bf16")),
        *[(GPT, on(4, "dp+pp", dp=2, pp=2, zero=zero, micro_batches=3)) for zero in range(4)],
        (QWEN, on(4, "dp+pp", dp=2, pp=2, zero=3, micro_batches=6, recompute="full")),
        *[(QWEN, on(4, "3d", dp=2, pp=1, tp=2, zero=zero)) for zero in range(4)],
        (GPT, on(4, "3d", dp=1, pp=2, tp=2, batch=4, micro_batches=4, sequence_parallel=True)),
    ],
}  # fmt: skip

# torch has a block computed again for each of its weights where a backward pass is halved.
assert not any(
    choices.get("recompute") and choices.get("schedule") in ("zb", "zbv", "dualpipev")
    for cases in CASES.values()
    for _, choices in cases
)


def _followed_bytes(meter: Meter) -> int:
    """The highest sum of all storages that the meter followed through the step."""
    return max(sum(row.by_category[:-1]) for row in meter._memory._tracker.rows())


def _measure(rank: int, cases: list[Case]) -> list[tuple[Step, int]]:
    found = []
    for sizes, choices in cases:
        plan = Plan(**choices)
        trainer = Trainer(Model(**sizes), plan, CPU, trace_every=2)
        # DDP settles its buckets in the first steps.
        settled = plan.pp == 1 and plan.data in ("replicate", "zero1-torch")
        step = [trainer.step() for _ in range(WARM_STEP + 1 if settled else 2)][-1]
        assert step.traced
        found.append((step, _followed_bytes(trainer.meter)))
        trainer.close()
    return found


Measured = list[tuple[Model, Plan, list[tuple[Step, int]]]]


@pytest.fixture(scope="module")
def measured() -> Measured:
    """Every case, and what each of its ranks measured in a warm step."""
    found = []
    for devices, cases in CASES.items():
        if devices == 1:
            by_rank = [_measure(0, cases)]
        else:
            by_rank = run_ranks(_measure, devices, cases, deadline_seconds=300)
        for i, (sizes, choices) in enumerate(cases):
            found.append((Model(**sizes), Plan(**choices), [steps[i] for steps in by_rank]))
    return found


@pytest.mark.timeout(600)
def test_states_are_the_measured_to_the_byte(measured: Measured) -> None:
    for model, plan, steps in measured:
        for rank, (step, _) in zip(predict(model, plan).ranks, steps, strict=True):
            assert _only(rank).memory.states == step.memory.states, (model.name, plan, rank.rank)


@pytest.mark.timeout(600)
def test_collectives_are_the_measured_to_the_byte(measured: Measured) -> None:
    def rows(step: Step) -> dict[tuple[str, str, str], tuple[int, int]]:
        return {
            (row.op, row.axis, row.phase): (row.count, row.payload_bytes)
            for row in step.communication
        }

    for model, plan, steps in measured:
        for rank, (step, _) in zip(predict(model, plan).ranks, steps, strict=True):
            assert rows(_only(rank)) == rows(step), (model.name, plan, rank.rank)
            predicted, seen = _only(rank).traffic, step.traffic
            assert predicted.keys() == seen.keys(), (model.name, plan, rank.rank)
            # Each operation's share of a ring is rounded down, and torch's ZeRO-1 deals out whole
            # tensors, so that ranks broadcast unequal parts.
            assert predicted == pytest.approx(seen, rel=0.01)


def _deviation(rank: Rank, step: Step, followed_bytes: int, plan: Plan) -> float:
    """How much a rank's predicted peak is above the measured one, as a part of it.

    Gloo copies what ZeRO's collectives reduce and gather, and only the allocator sees it, for as
    long as they take: of these plans both peaks are without what the meter does not follow.
    """
    memory = _only(rank).memory
    if plan.data in ("zero1", "zero2", "zero3"):
        return (memory.peak_bytes - memory.at_peak["workspace"]) / followed_bytes - 1
    return memory.peak_bytes / step.memory.peak_bytes - 1


@pytest.mark.timeout(600)
def test_peaks_are_within_two_percent_of_the_measured(measured: Measured) -> None:
    worst = {}
    for model, plan, steps in measured:
        ranks = zip(predict(model, plan).ranks, steps, strict=True)
        worst[f"{model.name}, {plan}"] = max(
            abs(_deviation(rank, *measurement, plan)) for rank, measurement in ranks
        )
    assert len(worst) == sum(map(len, CASES.values())) >= 40
    listed = "\n".join(f"{100 * part:6.2f} %  {case}" for case, part in worst.items())
    print(listed)
    within = sum(part <= 0.02 for part in worst.values())
    assert within >= 0.95 * len(worst), listed
    assert max(worst.values()) <= 0.05, listed


def _only(rank: Rank) -> Step:
    (step,) = rank.steps
    assert step.step == WARM_STEP
    assert step.traced
    return step


# Rajbhandari et al., arXiv:1910.02054, table 1: GB a device of 7.5B, 128B and 1T parameters, with
# the optimizer's state, the gradients too, and the weights too divided by so many devices.
PAPER = {
    1: ("120 120 120", "2048 2048 2048", "16000 16000 16000"),
    4: ("52.5 41.3 30", "896 704 512", "7000 5500 4000"),
    16: ("35.6 21.6 7.5", "608 368 128", "4750 2875 1000"),
    64: ("31.4 16.6 1.88", "536 284 32", "4187 2218 250"),
    256: ("30.4 15.4 0.47", "518 263 8", "4046 2054 62.5"),
    1024: ("30.1 15.1 0.12", "513 257 2", "4011 2013 15.6"),
}
# As many parameters to within 0.004 %, in sizes that 1,024 divides, so that nothing is padded.
PAPER_MODELS = (
    Model("7.5B", layers=100, hidden=2048, heads=16, ffn=8192, vocab=385_024, tied=True),
    Model("128B", layers=128, hidden=8192, heads=64, ffn=28_672, vocab=420_864, tied=True),
    Model("1T", layers=103, hidden=24_576, heads=96, ffn=98_304, vocab=188_416, tied=True),
)


def test_states_are_the_zero_papers() -> None:
    for model, parameters in zip(PAPER_MODELS, (7.5e9, 128e9, 1e12), strict=True):
        assert model.parameters == pytest.approx(parameters, rel=4e-5)
    for devices, columns in PAPER.items():
        for model, column in zip(PAPER_MODELS, columns, strict=True):
            for stage, printed in enumerate(column.split(), start=1):
                plan = Plan(f"zero{stage}", devices, precision="bf16")
                held = sum(model_states(model, plan).values()) / 1e9
                last_digit = 10.0 ** -len(printed.partition(".")[2])
                # The paper rounds some numbers and cuts off others.
                assert held == pytest.approx(float(printed), abs=last_digit), (devices, printed)


@pytest.mark.parametrize(
    ("strategy", "states"),
    [
        ("ddp", 128_484_179_968),
        ("zero1", 44_166_436_864),
        ("zero2", 30_113_479_680),
        ("zero3", 16_060_522_496),
    ],
)
def test_states_of_llama_8b_in_bf16_with_fp32_masters(strategy: str, states: int) -> None:
    plan = Plan(strategy, 8, precision="bf16")
    assert sum(model_states(Model("llama-3.1-8b"), plan).values()) == states
