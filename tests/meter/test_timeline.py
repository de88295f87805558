"""Spans: on one clock, in order, with their stage and micro-batch."""

import time

import pytest
import torch
import torch.distributed as dist

from parallab.meter import Meter
from parallab.meter.timeline import now
from tests.ranks import run_ranks

CPU = torch.device("cpu")


def test_phases_become_spans_in_the_order_in_which_they_began():
    meter = Meter(CPU, {})
    with meter.step(4, traced=False):
        for micro_batch in range(2):
            with meter.phase("forward", micro_batch, stage=1):
                torch.ones(10)
            with meter.phase("backward", micro_batch, stage=1):
                torch.ones(10)
        with meter.phase("optimizer"):
            torch.ones(10)
    step = meter.take(2.5)
    meter.close()
    assert (step.step, step.loss, step.traced) == (4, 2.5, False)
    assert [(s.kind, s.micro_batch, s.stage) for s in step.spans] == [
        ("forward", 0, 1), ("backward", 0, 1), ("forward", 1, 1), ("backward", 1, 1),
        ("optimizer", 0, 0),
    ]  # fmt: skip
    ends = [end for span in step.spans for end in (span.start, span.end)]
    assert ends == sorted(ends)
    assert 0 <= ends[0] <= ends[-1] <= step.seconds


def test_a_phase_within_a_phase_gives_way_to_the_outer_one():
    meter = Meter(CPU, {})
    names = []
    with meter.step(0, traced=False):
        names.append(meter.gauge()["phase"])
        with meter.phase("forward"):
            names.append(meter.gauge()["phase"])
            with meter.phase("backward"):
                names.append(meter.gauge()["phase"])
            names.append(meter.gauge()["phase"])
        names.append(meter.gauge()["phase"])
    meter.close()
    assert names == ["other", "forward", "backward", "forward", "other"]


def test_each_step_begins_at_zero():
    meter = Meter(CPU, {})
    starts = []
    for index in range(3):
        with meter.step(index, traced=index == 1), meter.phase("forward"):
            pass
        spans = meter.take(None).spans
        assert len(spans) == 1
        starts.append(spans[0].start)
    meter.close()
    assert all(0 <= start < 1 for start in starts)


def test_the_clock_is_the_time_of_day():
    assert now() == pytest.approx(time.time(), abs=1)


def meeting(rank):
    before = now()
    dist.barrier()
    return before, now()


def test_ranks_of_one_host_share_the_clock():
    (before_0, after_0), (before_1, after_1) = run_ranks(meeting, 2)
    # Nobody leaves a barrier before the last has come.
    assert min(after_0, after_1) > max(before_0, before_1) - 0.001


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_spans_on_a_gpu_last_as_long_as_its_work():
    device = torch.device("cuda")
    meter = Meter(device, {})
    matrix = torch.ones(4096, 4096, device=device)
    for index in range(2):
        with meter.step(index, traced=False):
            with meter.phase("forward"):
                for _ in range(20):
                    matrix @ matrix
            with meter.phase("backward"):
                pass
    step = meter.take(None)
    meter.close()
    forward, backward = step.spans
    assert 0 <= forward.start < forward.end <= backward.start <= backward.end <= step.seconds
    assert forward.end - forward.start > 0.8 * step.seconds
