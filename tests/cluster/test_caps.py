"""A cap stands for what others leave: a rank that needs more runs out of memory, and says so."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from torch import nn

import parallab as pl
from parallab.meter import Meter

MIB = 2**20
MODEL = pl.Model("micro")
PIPELINES = pl.Plan("dp+pp", dp=2, pp=2, batch=16)


@pytest.mark.parametrize("traced", [True, False])
def test_the_meter_raises_in_the_phase_that_goes_beyond_the_cap(traced):
    meter = Meter(torch.device("cpu"), {}, cap_bytes=MIB)
    module = nn.Linear(256, 256, bias=False)  # 256 KiB, and as much for its gradient
    meter.watch(module, None)
    with meter.step(0, traced), meter.phase("forward"):
        loss = module(torch.ones(8, 256)).sum()

    def backward():
        with meter.step(1, traced), meter.phase("backward"):
            loss.backward()
            _too_much = torch.ones(400_000)

    with pytest.raises(torch.OutOfMemoryError, match=r"hold 2\.\d\d MiB in the backward phase"):
        backward()


@pytest.mark.parametrize(
    ("caps", "message"),
    [
        ([MIB, MIB], r"cap_bytes names 2 engines, and there are 4; give one number for all"),
        (0, r"cap_bytes=0 must be a whole number from 1"),
        (1.5, r"cap_bytes=1\.5 must be a whole number from 1"),
        ([MIB, MIB, MIB, 1.5], r"cap_bytes=1\.5 must be a whole number"),
    ],
)
@pytest.mark.engines
def test_caps_that_cannot_be_are_refused(cluster, monkeypatch, caps, message):
    monkeypatch.setattr(cluster, "cap_bytes", caps)
    with pytest.raises(pl.PlanError, match=message):
        cluster.submit(MODEL, PIPELINES)


@pytest.mark.engines
def test_the_rank_with_the_least_room_decides(cluster, monkeypatch):
    """Rank 0 peaks at 22.5 MiB, rank 3 at 16.2: the same caps in another order fail."""
    monkeypatch.setattr(cluster, "cap_bytes", [40 * MIB, 40 * MIB, 40 * MIB, 20 * MIB])
    report = cluster.run(MODEL, PIPELINES, steps=2)
    assert report.environment["cap_bytes"] == [40 * MIB, 40 * MIB, 40 * MIB, 20 * MIB]
    cluster.cap_bytes = [20 * MIB, 40 * MIB, 40 * MIB, 40 * MIB]
    run = cluster.submit(MODEL, PIPELINES, steps=2).wait()
    assert isinstance(run.error, pl.RankError)
    assert run.error.rank == 0
    assert "Rank 0 ran out of memory in step" in str(run.error)
    assert "its cap is 20.00 MiB). More micro-batches" in str(run.error)
    cluster.cap_bytes = 24 * MIB
    assert cluster.run(MODEL, PIPELINES, steps=2).steps == 2


@pytest.mark.engines
def test_an_engine_that_dies_as_a_run_begins_is_restarted(cluster, monkeypatch):
    """It is there when the run looks who is lost, and gone when it is asked to make room."""
    pool = cluster._pool
    before = cluster.health()[2]["pid"]
    asked = []

    def ask(*args):
        if not asked:
            os.kill(before, signal.SIGKILL)
        asked.append(args)
        return plain(*args)

    plain = pool.answers
    monkeypatch.setattr(pool, "answers", ask)
    assert cluster.run(MODEL, PIPELINES, steps=1).steps == 1
    assert cluster.health()[2]["pid"] != before
