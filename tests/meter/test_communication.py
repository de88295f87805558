"""Counted communication: payload to the byte, whoever starts the operation."""

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from parallab.meter import Meter
from parallab.meter.communication import _OPERATIONS, _kernels
from parallab.report import OPERATIONS
from tests.ranks import run_ranks

CPU = torch.device("cpu")
# Two Linear(64, 64) with bias, in fp32.
BLOCK_BYTES = (64 * 64 + 64) * 4
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def blocks(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(64, 64, dtype=dtype) for _ in range(2)))


def counted(meter):
    rows = meter.take(None).communication
    return {(r.op, r.axis, r.phase): (r.count, r.payload_bytes, r.wire_bytes) for r in rows}


def train_step(meter, module, optimizer, index=0, traced=False):
    dtype = next(module.parameters()).dtype
    with meter.step(index, traced):
        with meter.phase("forward"):
            loss = module(torch.ones(4, 64, dtype=dtype)).float().square().mean()
        with meter.phase("backward"):
            loss.backward()
        with meter.phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


def test_every_operation_that_torch_has_is_read():
    schemas = [s for s in torch._C._jit_get_all_schemas() if s.name.startswith("c10d::")]
    moving = {
        s.name.removeprefix("c10d::")
        for s in schemas
        if "process_group" in [argument.name for argument in s.arguments]
    }
    assert moving <= set(_OPERATIONS)
    assert {operation.name for operation in _OPERATIONS.values()} == set(OPERATIONS)


# Every operation, called by hand. Tensors of 4 floats are 16 bytes.


def every_operation(rank):
    meter = Meter(CPU, {})
    four = torch.ones(4)
    parts = [torch.ones(2), torch.ones(2)]
    root = rank == 0
    with meter.step(0, traced=False):
        dist.all_reduce(four)
        dist.all_reduce_coalesced([torch.ones(4), torch.ones(6)])
        dist.all_gather(parts, torch.ones(2))
        dist.all_gather_into_tensor(four, torch.ones(2))
        dist.reduce_scatter(torch.empty(2), parts)
        dist.reduce_scatter_tensor(torch.empty(2), four)
        dist.broadcast(four, src=1)
        dist.reduce(four, dst=1)
        dist.gather(torch.ones(2), parts if root else None, dst=0)
        dist.scatter(torch.empty(2), parts if root else None, src=0)
        dist.all_to_all_single(torch.empty(4), torch.ones(4))
        if root:
            dist.send(torch.ones(5), dst=1)
        else:
            dist.recv(torch.empty(5), src=0)
        dist.barrier()
    rows = counted(meter)
    meter.close()
    return rows


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_payload_and_wire_bytes_of_every_operation():
    both = {
        ("all_reduce", "world", "other"): (2, 16 + 40, 16 + 40),
        ("all_gather", "world", "other"): (2, 32, 16),
        ("reduce_scatter", "world", "other"): (2, 32, 16),
        ("all_to_all", "world", "other"): (1, 16, 8),
        ("barrier", "world", "other"): (1, 0, 0),
    }
    # The root of broadcast and reduce is rank 1: it sends in the one and only receives in the
    # other. The root of gather and scatter is rank 0, which receives half and sends half.
    assert run_ranks(every_operation, 2) == [
        both
        | {
            ("broadcast", "world", "other"): (1, 16, 0),
            ("reduce", "world", "other"): (1, 16, 16),
            ("gather", "world", "other"): (1, 16, 0),
            ("scatter", "world", "other"): (1, 16, 8),
            ("send", "world", "other"): (1, 20, 20),
        },
        both
        | {
            ("broadcast", "world", "other"): (1, 16, 16),
            ("reduce", "world", "other"): (1, 16, 0),
            ("gather", "world", "other"): (1, 16, 8),
            ("scatter", "world", "other"): (1, 16, 0),
            ("recv", "world", "other"): (1, 20, 0),
        },
    ]


# Strategies, on a warm step.


def ddp_step(rank, precision):
    module = DistributedDataParallel(blocks(DTYPES[precision]))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    meter = Meter(CPU, {dist.group.WORLD.group_name: "dp"})
    meter.watch(module, optimizer)
    for index in range(4):
        train_step(meter, module, optimizer, index)
    rows = counted(meter)
    meter.close()
    return rows


@pytest.mark.parametrize(("precision", "element_bytes"), [("fp32", 4), ("bf16", 2)])
def test_ddp_all_reduces_each_gradient_once(precision, element_bytes):
    bytes_ = 2 * BLOCK_BYTES // 4 * element_bytes
    row = {("all_reduce", "dp", "backward"): (1, bytes_, bytes_)}
    assert run_ranks(ddp_step, 2, precision) == [row, row]


def sharded_step(rank, precision, traced):
    module = blocks(DTYPES[precision])
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    for block in module:
        fully_shard(block, mesh=mesh, reshard_after_forward=True)
    fully_shard(module, mesh=mesh)
    optimizer = torch.optim.AdamW(module.parameters())
    meter = Meter(CPU, {mesh.get_group("dp").group_name: "dp"})
    meter.watch(module, optimizer)
    for index in range(3):
        train_step(meter, module, optimizer, index, traced)
    rows = counted(meter)
    meter.close()
    return rows


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(("precision", "element_bytes"), [("fp32", 4), ("bf16", 2)])
def test_fully_shard_gathers_weights_twice_and_scatters_gradients(precision, element_bytes, traced):
    bytes_ = 2 * BLOCK_BYTES // 4 * element_bytes
    rows = {
        ("all_gather", "dp", "forward"): (2, bytes_, bytes_ // 2),
        ("all_gather", "dp", "backward"): (2, bytes_, bytes_ // 2),
        ("reduce_scatter", "dp", "backward"): (2, bytes_, bytes_ // 2),
    }
    assert run_ranks(sharded_step, 2, precision, traced) == [rows, rows]


def axes_step(rank):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    names = {mesh.get_group(axis).group_name: axis for axis in ("dp", "tp")}
    meter = Meter(CPU, names)
    with meter.step(0, traced=False):
        for group in (mesh.get_group("dp"), mesh.get_group("tp"), None):
            dist.all_reduce(torch.ones(8), group=group)
    rows = counted(meter)
    meter.close()
    return rows


def test_operations_are_told_apart_by_mesh_axis():
    rows = {
        ("all_reduce", "dp", "other"): (1, 32, 32),
        ("all_reduce", "tp", "other"): (1, 32, 32),
        ("all_reduce", "world", "other"): (1, 32, 48),  # a ring of four
    }
    assert run_ranks(axes_step, 4) == [rows] * 4


# Times.


@pytest.mark.filterwarnings("ignore::FutureWarning")
def timed_step(rank):
    meter = Meter(CPU, {})
    with meter.step(0, traced=False), meter.phase("forward", micro_batch=3, stage=1):
        dist.all_reduce(torch.ones(1000))
        dist.reduce_scatter_tensor(torch.empty(500), torch.ones(1000))
        if rank == 0:
            dist.send(torch.ones(1000), dst=1)
        else:
            dist.recv(torch.empty(1000), src=0)
        dist.barrier()
    step = meter.take(None)
    meter.close()
    return step


def test_every_gloo_operation_has_its_time():
    for step in run_ranks(timed_step, 2):
        assert len(step.communication) == 4
        for row in step.communication:
            assert row.seconds is not None
            assert 0 < row.seconds < step.seconds
        spans = [s for s in step.spans if s.kind == "communication"]
        assert len(spans) == 4
        for span in spans:
            assert 0 <= span.start < span.end <= step.seconds + 0.1
            assert (span.stage, span.micro_batch) == (1, 3)
        total = sum(span.end - span.start for span in spans)
        assert total == pytest.approx(sum(row.seconds for row in step.communication))


def untimed_step(rank):
    def broken(*_):
        raise ValueError("no times here")

    module = DistributedDataParallel(blocks())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    meter = Meter(CPU, {})
    losses = [train_step(meter, module, optimizer)]
    dist.Work.get_future = broken
    losses.append(train_step(meter, module, optimizer))
    step = meter.take(None)
    meter.close()
    return losses, [(r.op, r.count, r.seconds) for r in step.communication], len(step.spans)


def test_a_failure_to_time_leaves_the_time_unknown_and_the_training_alone():
    for losses, rows, spans in run_ranks(untimed_step, 2):
        assert losses[1] < losses[0]
        assert ("all_reduce", 1, None) in rows
        assert spans == 3  # the phases


# Kernels in the process.


def repeated_meters(rank):
    counts = []
    for close in (False, False, True):
        meter = Meter(CPU, {})
        for _ in range(2):
            with meter.step(0, traced=False):
                dist.all_reduce(torch.ones(4))
            counts.append(meter.take(None).communication[0].count)
        if close:
            meter.close()
            meter.close()
    dist.all_reduce(torch.ones(4))
    return counts, _kernels.meter is None, dist.Work.wait.__name__


def test_kernels_do_not_stack_up_and_go_away():
    for counts, gone, wait in run_ranks(repeated_meters, 2):
        assert counts == [1] * 6
        assert gone
        assert wait == "wait"


def replaced_meter(rank):
    old, new = Meter(CPU, {}), Meter(CPU, {})
    for meter in (old, new):
        with meter.step(0, traced=False):
            dist.all_reduce(torch.ones(4))
    old.close()
    with new.step(1, traced=False):
        dist.all_reduce(torch.ones(4))
    count = new.take(None).communication[0].count
    new.close()
    return count


def test_closing_an_old_meter_leaves_the_new_one_counting():
    assert run_ranks(replaced_meter, 2) == [1, 1]


def outside_steps(rank):
    meter = Meter(CPU, {})
    with meter.step(0, traced=False):
        pass
    dist.all_reduce(torch.ones(4))
    rows = counted(meter)
    meter.close()
    return rows


def test_only_steps_are_counted():
    assert run_ranks(outside_steps, 2) == [{}, {}]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def held_tensors(rank):
    meter = Meter(CPU, {})
    alive = []
    with meter.step(0, traced=False):
        for asynchronous in (False, True):
            tensor = torch.ones(1000)
            storage = weakref.ref(tensor.untyped_storage())
            work = dist.reduce_scatter_tensor(torch.empty(500), tensor, async_op=asynchronous)
            if work is not None:
                work.wait()
            del tensor, work
            gc.collect()
            alive.append(storage() is not None)
    meter.close()
    return alive


def test_timing_keeps_no_tensor_alive():
    assert run_ranks(held_tensors, 2) == [[False, False]] * 2
