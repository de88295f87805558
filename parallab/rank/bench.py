"""What one rank's machine does in a second, and what the meters take of it.

Steps of three kinds take turns, so that whatever else the machine does meets all of them alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist

from parallab.rank.trainer import Trainer

MATRIX = 1024
COLLECTIVE_BYTES = 16 * 2**20


def measure(trainer: Trainer, rounds: int) -> dict[str, dict[str, float]]:
    """Times this rank's steps, collectives and matrix products; every rank calls it at once.

    Args:
        trainer: with a plan of several ranks.
        rounds: how often everything is done; the median counts.

    Returns:
        "step_seconds" by kind: plain (nothing is recorded), recorded (communication, time and
        peaks), traced (memory by category too); "collective_bytes_per_second" by operation, payload
        over duration; "flops" by precision.
    """
    device = trainer.device
    kinds: dict[str, Callable[[], object]] = {
        "plain": partial(_plain_step, trainer),
        "recorded": partial(trainer.step, traced=False),
        "traced": partial(trainer.step, traced=True),
    }
    ranks = dist.get_world_size()
    whole = torch.ones(COLLECTIVE_BYTES // 4 // ranks * ranks, device=device)
    part = torch.ones(len(whole) // ranks, device=device)
    operations: dict[str, Callable[[], object]] = {
        "all_reduce": partial(dist.all_reduce, whole),
        "all_gather": partial(dist.all_gather_into_tensor, whole, part),
        "reduce_scatter": partial(dist.reduce_scatter_tensor, part, whole),
    }
    payload_bytes = 4 * len(whole)
    return {
        "step_seconds": _medians(kinds, rounds, device),
        "collective_bytes_per_second": {
            op: payload_bytes / seconds
            for op, seconds in _medians(operations, rounds, device).items()
        },
        "flops": {
            name: 2 * MATRIX**3 / seconds
            for name, seconds in _medians(_products(device), rounds, device).items()
        },
    }


def _products(device: torch.device) -> dict[str, Callable[[], object]]:
    found: dict[str, Callable[[], object]] = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        square = torch.ones(MATRIX, MATRIX, dtype=dtype, device=device)
        found[name] = partial(torch.matmul, square, square)
    return found


def _medians(
    works: dict[str, Callable[[], object]], rounds: int, device: torch.device
) -> dict[str, float]:
    """Seconds of each, which take turns; the first time does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            dist.barrier()
            began = time.perf_counter()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(found) for name, found in seconds.items()}


def _plain_step(trainer: Trainer) -> None:
    """`Trainer.step` with nobody looking."""
    plan, device = trainer.plan, trainer.device
    batch = trainer.corpus.batch(0, plan.batch, plan.seq)
    tokens, targets = (t.to(device) for t in trainer.data.share(*batch))
    trainer.split.forward_backward(plan, tokens, targets, _no_phase)
    trainer.split.update(plan, device)


@contextmanager
def _no_phase(*_args: object, **_options: object) -> Iterator[None]:
    yield
