"""Memory by category, held against arithmetic and against the allocator's own record."""

import json
import threading

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from parallab.meter import Meter, allocator
from parallab.meter.categories import Row
from parallab.meter.memory import thin
from parallab.report import CATEGORIES
from tests.ranks import run_ranks

CPU = torch.device("cpu")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
NOTHING = dict.fromkeys(CATEGORIES, 0)


def train_step(meter, module, optimizer, index=0, *, traced=True, inputs=None, forward=None):
    """One step whose input is made inside it; the record."""
    with meter.step(index, traced):
        if inputs is None:
            inputs = torch.ones(8, 64, dtype=next(module.parameters()).dtype)
        with meter.phase("forward"):
            loss = (forward or module)(inputs).sum()
        with meter.phase("backward"):
            loss.backward()
        with meter.phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        del inputs
    return meter.take(loss.item())


# By hand: one Linear(64, 32) without bias on a batch of 8. P = 64 × 32 elements.


@pytest.mark.parametrize(("precision", "e"), [("fp32", 4), ("bf16", 2)])
def test_one_linear_layer(precision, e):
    meter = Meter(CPU, {})
    module = nn.Linear(64, 32, bias=False, dtype=DTYPES[precision])
    optimizer = torch.optim.AdamW(module.parameters(), foreach=False)
    meter.watch(module, optimizer)
    parameters, inputs, outputs = 2048 * e, 8 * 64 * e, 8 * 32 * e
    states = {
        "parameters": parameters,
        "gradients": parameters,
        "optimizer": 2 * parameters + 4,  # two moments and a step counter
        "buffers": 0,
    }
    for index in range(2):
        memory = train_step(meter, module, optimizer, index).memory
        assert memory.states == states
        forward, backward, update = memory.phases
        held = states["optimizer"] if index else 0
        # The output is summed up and dropped; what stays is the input, and the sum.
        assert forward.by_category == NOTHING | {
            "parameters": parameters,
            "optimizer": held,
            "activations": inputs + e,
            "temporary": outputs,
        }
        # sum's backward expands the gradient of the loss (another e bytes) without copying it.
        assert backward.by_category["gradients"] == parameters
        assert backward.by_category["activations"] == inputs + e + e
        assert update.by_category["optimizer"] == states["optimizer"]
        assert update.by_category["gradients"] == parameters
    meter.close()


def test_without_state_the_optimizer_holds_nothing():
    meter = Meter(CPU, {})
    module = nn.Linear(64, 32)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    meter.watch(module, optimizer)
    memory = train_step(meter, module, optimizer).memory
    meter.close()
    size = (64 * 32 + 32) * 4
    assert memory.states == {
        "parameters": size, "gradients": size, "optimizer": 0, "buffers": 0,
    }  # fmt: skip


def test_buffers_and_masters_and_a_shared_flat_buffer():
    meter = Meter(CPU, {})
    module = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False))
    module.register_buffer("table", torch.zeros(100))
    flat = torch.zeros(2 * 256 + 8)
    for layer, part in zip(module, flat[:512].split(256), strict=True):
        layer.weight.data = part.view(16, 16)
    master = nn.Parameter(torch.zeros(300))
    shard = nn.Parameter(flat[:256])
    optimizer = torch.optim.SGD([shard, master], lr=0.1)
    meter.watch(module, optimizer)
    memory = train_step(meter, module, optimizer, inputs=torch.ones(2, 16)).memory
    meter.close()
    assert memory.states == {
        "parameters": 520 * 4,  # padding included, once
        "gradients": 512 * 4,
        "optimizer": 300 * 4,
        "buffers": 100 * 4,
    }
    assert memory.at_peak["optimizer"] == 300 * 4
    assert memory.at_peak["parameters"] == 520 * 4


# What counts.


def test_memory_older_than_the_meter_does_not_count():
    corpus = torch.zeros(250_000)
    meter = Meter(CPU, {})
    module = nn.Linear(64, 32)
    meter.watch(module, None)
    before = meter.gauge()["bytes"]
    younger = torch.zeros(1000)
    after = meter.gauge()["bytes"]
    meter.close()
    assert before == (64 * 32 + 32) * 4
    assert after == before + younger.nbytes
    assert corpus.nbytes == 1_000_000


def test_a_model_older_than_the_meter_counts_all_the_same():
    module = nn.Linear(64, 32)
    meter = Meter(CPU, {})
    meter.watch(module, None)
    assert meter.gauge()["bytes"] == (64 * 32 + 32) * 4
    meter.close()


def test_what_no_category_explains_is_workspace():
    meter = Meter(CPU, {})
    library = torch.zeros(5000)
    module = nn.Linear(64, 32, bias=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    meter.watch(module, optimizer)
    memory = train_step(meter, module, optimizer).memory
    meter.close()
    assert memory.at_peak["workspace"] == library.nbytes


# Against the allocator's record of every allocation. The loss squares first: the backward of gelu
# alone would copy an expanded gradient inside its kernel, where nobody looks on CPU.


def mlp(width=256, depth=4):
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers)


def true_peak(step, folder):
    """The highest total of c10's allocator during `step()`, from torch's profiler."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        step()
    path = folder / f"trace{torch.initial_seed()}.json"
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    return max(e["args"]["Total Allocated"] for e in events if e.get("name") == "[memory]")


@pytest.mark.parametrize("recompute", [False, True])
def test_the_traced_peak_is_the_allocators(tmp_path, recompute):
    meter = Meter(CPU, {})
    older = allocator.CPUAllocator().total_bytes()
    module = mlp()
    optimizer = torch.optim.AdamW(module.parameters())
    meter.watch(module, optimizer)

    def forward(inputs):
        outputs = checkpoint(module, inputs, use_reentrant=False) if recompute else module(inputs)
        return outputs.square()

    def step(index, traced):
        inputs = torch.ones(512, 256)
        return train_step(
            meter, module, optimizer, index, traced=traced, inputs=inputs, forward=forward
        )

    step(0, True)
    memory = step(1, True).memory
    truth = true_peak(lambda: step(2, False), tmp_path)
    meter.close()
    assert memory.peak_bytes == pytest.approx(truth - older, abs=1024)


def ddp_peaks(rank, folder):
    meter = Meter(CPU, {})
    older = allocator.CPUAllocator().total_bytes()
    module = DistributedDataParallel(mlp())
    optimizer = torch.optim.AdamW(module.parameters())
    meter.watch(module, optimizer)

    def step(index, traced):
        return train_step(
            meter, module, optimizer, index, traced=traced, inputs=torch.ones(512, 256),
            forward=lambda inputs: module(inputs).square(),
        )  # fmt: skip

    for index in range(3):
        memory = step(index, True).memory
    truth = true_peak(lambda: step(3, False), folder / str(rank))
    meter.close()
    return memory.peak_bytes, truth - older


def test_the_traced_peak_is_the_allocators_under_ddp(tmp_path):
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    for traced, truth in run_ranks(ddp_peaks, 2, tmp_path):
        # Gloo's own copies come and go in its threads.
        assert traced == pytest.approx(truth, rel=0.001)


# Whatever is recorded adds up.


def test_categories_add_up_to_the_peak_at_every_moment():
    meter = Meter(CPU, {})
    module = mlp()
    optimizer = torch.optim.AdamW(module.parameters())
    meter.watch(module, optimizer)
    for index in range(3):
        memory = train_step(meter, module, optimizer, index, inputs=torch.ones(64, 256)).memory
        assert sum(memory.at_peak.values()) == memory.peak_bytes
        assert tuple(memory.at_peak) == CATEGORIES
        assert [p.phase for p in memory.phases] == ["forward", "backward", "optimizer"]
        for phase in memory.phases:
            assert sum(phase.by_category.values()) == phase.peak_bytes <= memory.peak_bytes
        seconds = memory.series["seconds"]
        assert list(memory.series) == ["seconds", *CATEGORIES]
        assert seconds == sorted(seconds)
        assert len(seconds) <= 200
        totals = [sum(bytes_) for bytes_ in zip(*map(memory.series.get, CATEGORIES), strict=True)]
        assert max(totals) == memory.peak_bytes
        assert min(totals) >= 0
    meter.close()


def test_an_untraced_step_knows_its_states_and_what_was_seen_between_phases():
    meter = Meter(CPU, {})
    module = mlp()
    optimizer = torch.optim.AdamW(module.parameters())
    meter.watch(module, optimizer)
    inputs = torch.ones(64, 256)
    train_step(meter, module, optimizer, 0, inputs=inputs)
    traced = train_step(meter, module, optimizer, 1, inputs=inputs).memory
    untraced = train_step(meter, module, optimizer, 2, inputs=inputs, traced=False).memory
    meter.close()
    assert untraced.states == traced.states
    assert untraced.at_peak == {}
    assert untraced.series == {}
    assert sum(untraced.states.values()) < untraced.peak_bytes <= traced.peak_bytes
    assert [p.phase for p in untraced.phases] == ["forward", "backward", "optimizer"]
    assert max(p.peak_bytes for p in untraced.phases) == untraced.peak_bytes


def test_an_error_in_a_step_leaves_nothing_behind():
    meter = Meter(CPU, {})
    module = mlp(64, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    meter.watch(module, optimizer)
    resize = torch.UntypedStorage.resize_
    with pytest.raises(ZeroDivisionError), meter.step(0, traced=True), meter.phase("forward"):
        raise ZeroDivisionError
    assert torch.UntypedStorage.resize_ is resize
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert meter.gauge()["phase"] == "other"
    memory = train_step(meter, module, optimizer, 1).memory
    assert sum(memory.at_peak.values()) == memory.peak_bytes
    meter.close()


def test_without_a_readable_allocator_the_categories_stand_alone(monkeypatch):
    monkeypatch.setattr(allocator, "_COUNTER", None)
    meter = Meter(CPU, {})
    module = nn.Linear(64, 32, bias=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    meter.watch(module, optimizer)
    assert not meter.knows_total
    traced = train_step(meter, module, optimizer, 0).memory
    assert meter.gauge()["bytes"] == 64 * 32 * 4
    untraced = train_step(meter, module, optimizer, 1, traced=False).memory
    meter.close()
    assert "workspace" not in traced.at_peak
    assert "workspace" not in traced.series
    assert sum(traced.at_peak.values()) == traced.peak_bytes > 2 * 64 * 32 * 4
    assert untraced.peak_bytes == 2 * 64 * 32 * 4  # weights and gradients: the states


def test_the_allocators_counter_refuses_when_it_miscounts():
    assert allocator._counts_4000_bytes(allocator._COUNTER)
    assert not allocator._counts_4000_bytes(allocator.ctypes.c_size_t(17))


def test_the_gauge_is_read_from_another_thread_in_the_middle_of_a_step():
    meter = Meter(CPU, {})
    module = nn.Linear(64, 32)
    meter.watch(module, None)
    seen = []
    with meter.step(7, traced=True), meter.phase("backward"):
        extra = torch.ones(1000)
        thread = threading.Thread(target=lambda: seen.append(meter.gauge()))
        thread.start()
        thread.join()
    meter.close()
    weights = (64 * 32 + 32) * 4
    assert seen == [{"step": 7, "phase": "backward", "bytes": weights + extra.nbytes}]


def test_thinning_keeps_the_order_the_peaks_and_the_valleys():
    heights = [(i * 7919) % 1000 for i in range(5000)]
    rows = [Row(i, "forward", [height]) for i, height in enumerate(heights)]
    few = thin(rows, 200)
    assert 100 <= len(few) <= 200
    assert [row.seconds for row in few] == sorted(row.seconds for row in few)
    assert max(row.total for row in few) == max(heights)
    assert min(row.total for row in few) == min(heights)
    assert thin(rows[:200], 200) == rows[:200]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_the_cuda_allocators_peak_is_reconciled():
    device = torch.device("cuda")
    meter = Meter(device, {})
    older = torch.cuda.memory_allocated()
    module = mlp().to(device)
    optimizer = torch.optim.AdamW(module.parameters())
    meter.watch(module, optimizer)
    for index in range(2):
        memory = train_step(
            meter, module, optimizer, index, inputs=torch.ones(512, 256, device=device)
        ).memory
        assert sum(memory.at_peak.values()) == memory.peak_bytes
    untraced = train_step(
        meter, module, optimizer, 2, traced=False, inputs=torch.ones(512, 256, device=device)
    ).memory
    meter.close()
    assert older + untraced.peak_bytes >= torch.cuda.memory_allocated()
    assert untraced.peak_bytes == pytest.approx(memory.peak_bytes, rel=0.01)
