"""What pipelines are known for, seen in measured steps: the bubble, and what waits in memory."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch.distributed.pipelining import PipelineStage

from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.predict.bubble import bubble, measured_bubble
from parallab.rank.trainer import Trainer
from parallab.report import Step
from parallab.schedules import in_flight, orders
from tests.ranks import run_ranks

CPU = torch.device("cpu")
# Eight blocks, and a head so small that all stages are alike.
EVEN: dict[str, Any] = dict(
    name="even", layers=8, hidden=64, heads=4, kv_heads=4, ffn=128, vocab=64
)


def _most_activations(rank: int, plans: list[dict[str, Any]]) -> list[float]:
    most = []
    for choices in plans:
        trainer = Trainer(Model(**EVEN), Plan(**choices), CPU)
        traced = [trainer.step() for _ in range(2)][-1]
        most.append(max(traced.memory.series["activations"]))
        trainer.close()
    return most


def test_gpipe_keeps_all_micro_batches_and_1f1b_as_many_as_ranks_follow() -> None:
    common: dict[str, Any] = dict(devices=4, seq=64)
    one = dict(strategy="mp", batch=2, **common)
    names = ["gpipe", "1f1b", "interleaved"]
    plans = [dict(strategy="pp", batch=16, micro_batches=8, schedule=s, **common) for s in names]
    by_rank = run_ranks(_most_activations, 4, [one, *plans])
    times = [[most / r[0] for most in r[1:]] for r in by_rank]
    gpipe, plain, interleaved = zip(*times, strict=True)
    assert gpipe == pytest.approx([8, 8, 8, 8], rel=0.02)
    assert plain == pytest.approx([4, 3, 2, 1], rel=0.02)
    # Its stages are half as large, and a stage's transient share of a backward pass as well.
    halves = [held / 2 for held in in_flight(orders("interleaved", 4, 8))]
    assert interleaved == pytest.approx(halves, rel=0.06)


def _pace(name: str, seconds: float) -> None:
    """Makes every pass of a kind take the same time, as if each rank had a device of its own.

    Ranks that share cores slow one another down, most while most of them work, so their bubble says
    little about the schedule. The passes are real; what they are short of `seconds` is waited for.
    """
    run = getattr(PipelineStage, name)

    def paced(*args: Any, **kwargs: Any) -> Any:
        until = time.perf_counter() + seconds
        result = run(*args, **kwargs)
        time.sleep(max(0.0, until - time.perf_counter()))
        return result

    setattr(PipelineStage, name, paced)


def _paced_steps(rank: int, plans: list[dict[str, Any]], seconds: float) -> list[list[Step]]:
    _pace("forward_one_chunk", seconds)
    _pace("backward_one_chunk", 2 * seconds)
    found = []
    for choices in plans:
        trainer = Trainer(Model(**EVEN), Plan(**choices), CPU, trace_every=0)
        found.append([trainer.step() for _ in range(3)][1:])
        trainer.close()
    return found


def _idle_of_total(
    schedule: str, micro_batches: list[int], seconds: float
) -> tuple[list[float], list[float]]:
    """Of four ranks, for each number of micro-batches: as measured, and by the formula."""
    plans = [
        dict(strategy="pp", devices=4, seq=16, batch=m, micro_batches=m, schedule=schedule)
        for m in micro_batches
    ]
    by_rank = run_ranks(_paced_steps, 4, plans, seconds, deadline_seconds=120)
    measured, formula = [], []
    for i, choices in enumerate(plans):
        plan = Plan(**choices)
        expected = bubble(plan)
        found = [
            measured_bubble(plan, step)
            for step in zip(*(results[i] for results in by_rank), strict=True)
        ]
        assert expected is not None
        formula.append(expected.idle_of_total)
        measured.append(min(b.idle_of_total for b in found if b))
    return measured, formula


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_bubble_follows_the_formula(schedule: str) -> None:
    for seconds in (0.03, 0.1, 0.2):
        measured, formula = _idle_of_total(schedule, [4, 16], seconds)
        # What comes on top is the way between two ranks: the slower the passes, the less it counts.
        if measured == pytest.approx(formula, abs=0.12):
            break
    assert formula == pytest.approx([3 / 7, 3 / 19])
    assert measured == pytest.approx(formula, abs=0.12)
    assert all(real > ideal - 0.01 for real, ideal in zip(measured, formula, strict=True))


@pytest.mark.bench
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_how_near_the_bubble_is_to_the_formula(schedule: str) -> None:
    measured, formula = _idle_of_total(schedule, [4, 8, 16, 32], 0.05)
    for m, real, ideal in zip([4, 8, 16, 32], measured, formula, strict=True):
        print(f"{schedule}, 4 ranks, {m} micro-batches: idle/total {real:.3f}, formula {ideal:.3f}")
    assert measured == pytest.approx(formula, abs=0.05)
