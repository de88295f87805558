"""The estimated time of a step: rooflines and alpha-beta by hand, and published runs."""

import timeit

import pytest

import parallab as pl
from parallab.datasheets import Gpu, Link, Network
from parallab.predict.communication import payload_per_step, wire_bytes
from parallab.predict.time import Efficiency, Speed, model_flops, step_time
from parallab.units import GIB

WHOLE = Efficiency(matmul=1, memory=1, link=1, overlap=0)
# 1,000 GFLOP/s, 100 GB/s of memory, 10 GB/s and 1 us to a neighbour.
GPU = Gpu("round", 100 * GIB, 100e9, 1e12, 1e12)
SLOW_NETWORK = Network("wire", 0.8e9, False, "0.1 GB/s for each GPU", 10e-6)


def hardware(devices, nodes=1):
    return pl.Hardware(
        GPU, nodes, devices // nodes, link=Link("bus", 10e9, 1e-6), interconnect=SLOW_NETWORK
    )


def model(**sizes):
    given = dict(layers=2, hidden=64, heads=4, ffn=256, vocab=1000, context=512, **sizes)
    return pl.Model("by-hand", **given)


def time(plan, devices=None, efficiency=WHOLE, nodes=1, **sizes):
    return step_time(model(**sizes), plan, hardware(devices or plan.devices, nodes), efficiency)


# Rooflines.


def test_an_operation_takes_as_long_as_its_arithmetic_or_its_memory_traffic():
    speed = Speed(GPU, "bf16", WHOLE)
    assert speed.seconds(1e12, 1e9) == 1.0
    assert speed.seconds(1e9, 100e9) == 1.0
    half = Speed(GPU, "bf16", Efficiency(matmul=0.5, memory=0.25))
    assert half.seconds(1e12, 0) == 2.0
    assert half.seconds(0, 100e9) == 4.0


def test_fp32_has_its_own_peak():
    gpu = Gpu("two", GIB, 1e12, 8e12, 2e12)
    assert Speed(gpu, "bf16", WHOLE).seconds(8e12, 0) == 1.0
    assert Speed(gpu, "fp32", WHOLE).seconds(8e12, 0) == 4.0


def test_flops_of_a_token_are_palms_formula():
    # Weights that multiply: a block's 4 h² + 3 h f, and the head's v h; 12 L h s for attention.
    weights = 2 * (4 * 64**2 + 3 * 64 * 256) + 1000 * 64
    assert model_flops(model(), 128) == 6 * weights + 12 * 2 * 64 * 128


def test_a_token_pays_for_the_experts_that_it_is_sent_to():
    sparse = model(experts=8, experts_per_token=2, expert_ffn=32)
    weights = 2 * (4 * 64**2 + 2 * 3 * 64 * 32 + 8 * 64) + 1000 * 64
    assert model_flops(sparse, 128) == 6 * weights + 12 * 2 * 64 * 128


def test_one_device_computes_and_updates():
    plan = pl.Plan("single", batch=4, seq=128, precision="bf16")
    step = time(plan)
    tokens = 4 * 128

    def linear(out, into):
        return max(2 * tokens * out * into / 1e12, 2 * (out * into + tokens * (out + into)) / 1e11)

    attention = max(4 * tokens * 128 * 64 / 1e12, 2 * tokens * 4 * 64 / 1e11)
    # Two norms 2h each, two sums 3h each, rotary positions 2(h + h), the gated activation 5f.
    elementwise = 2 * tokens * (2 * 2 * 64 + 2 * 3 * 64 + 4 * 64 + 5 * 256) / 1e11
    block = 4 * linear(64, 64) + 2 * linear(256, 64) + linear(64, 256) + attention + elementwise
    embedding = 2 * tokens * 2 * 64 / 1e11
    head = linear(1000, 64) + tokens * ((2 + 12) * 1000 + 2 * 2 * 64) / 1e11
    assert step.compute_seconds == pytest.approx(3 * (2 * block + embedding + head))
    assert step.optimizer_seconds == pytest.approx(28 * model().parameters / 1e11)
    assert step.seconds == pytest.approx(step.compute_seconds + step.optimizer_seconds)
    assert step.exposed_seconds == {"tp": 0, "pp": 0, "dp": 0}
    assert step.utilization == pytest.approx(step.model_flops / step.seconds / 1e12)


def test_recomputing_repeats_the_blocks_forward_passes():
    keep = time(pl.Plan("single", batch=4, seq=128))
    again = time(pl.Plan("single", batch=4, seq=128, recompute="full"))
    assert again.compute_seconds == keep.compute_seconds
    assert 0.2 < again.recompute_seconds / keep.compute_seconds < 1 / 3
    assert again.model_flops == keep.model_flops


def test_sgd_moves_less_than_adamw():
    adamw = time(pl.Plan("single", batch=4))
    sgd = time(pl.Plan("single", batch=4, optimizer="sgd"))
    assert sgd.optimizer_seconds / adamw.optimizer_seconds == pytest.approx(12 / 28)


# Alpha-beta.


def test_a_collective_takes_its_rings_latency_and_its_wire_bytes():
    speed, ring = Speed(GPU, "bf16", WHOLE), hardware(4).ring(1, 4)
    assert speed.collective("all_gather", 4e9, ring) == pytest.approx(3e-6 + 3e9 / 10e9)
    assert speed.collective("reduce_scatter", 4e9, ring) == pytest.approx(3e-6 + 0.3)
    assert speed.collective("all_reduce", 4e9, ring) == pytest.approx(6e-6 + 0.6)
    assert speed.collective("all_reduce", 4e9, ring, calls=10) == pytest.approx(60e-6 + 0.6)
    slower = Speed(GPU, "bf16", Efficiency(link=0.5))
    assert slower.collective("all_gather", 4e9, ring) == pytest.approx(3e-6 + 0.6)


def test_an_all_reduce_of_many_ranks_takes_a_tree():
    speed, ring = Speed(GPU, "bf16", WHOLE), hardware(1024, nodes=256).ring(1, 1024)
    assert ring.latency_seconds == pytest.approx(768e-6 + 255 * 10e-6)
    up_and_down = 2 * (3e-6 + 8 * 10e-6)
    assert speed.collective("all_reduce", 4e3, ring, calls=10) == pytest.approx(
        10 * up_and_down + 2 * 4e3 / (0.92 * 4 * 0.1e9)
    )
    assert speed.collective("all_reduce", 4e12, ring) == pytest.approx(
        2 * ring.latency_seconds + 2 * 1023 / 1024 * 4e12 / 0.4e9
    )


def test_ddp_reduces_in_the_last_backward_pass():
    plan = pl.Plan("ddp", 4, batch=16, seq=128, micro_batches=2)
    weights = model().parameters * 4
    reduction = 2 * 3 / 4 * weights / 10e9 + 2 * 3e-6
    assert time(plan).exposed_seconds["dp"] == pytest.approx(reduction)
    # All of it may hide, and does behind half of the backward passes, which are two thirds.
    hidden = time(plan, efficiency=Efficiency(1, 1, 1, overlap=1))
    behind = time(plan).compute_seconds * 2 / 3 / 2
    assert hidden.exposed_seconds["dp"] == pytest.approx(max(0.0, reduction - behind))
    assert hidden.hidden_seconds == pytest.approx(min(reduction, behind))


def test_zero_divides_the_optimizers_work():
    ddp, zero = (time(pl.Plan(name, 4, batch=16)) for name in ("ddp", "zero1"))
    assert zero.optimizer_seconds == pytest.approx(ddp.optimizer_seconds / 4)


def test_the_tensor_axis_is_waited_for():
    plan = pl.Plan("tp", 4, batch=8, seq=128, micro_batches=2)
    each = 2 * 3 / 4 * 4 * 128 * 64 * 4 / 10e9 + 6e-6
    # Four all-reduces a layer, and one at either end, for each micro-batch.
    assert time(plan).exposed_seconds["tp"] == pytest.approx(2 * (2 * 4 + 2) * each)
    assert time(plan, efficiency=Efficiency(1, 1, 1, 1)).exposed_seconds == time(
        plan
    ).exposed_seconds | {"dp": 0.0}


def test_a_pipeline_waits_while_it_fills_and_drains():
    plan = pl.Plan("pp", 2, batch=8, seq=128, micro_batches=4, precision="bf16")
    step = time(plan)
    each = 1e-6 + 2 * 128 * 64 * 2 / 10e9
    assert step.exposed_seconds["pp"] == pytest.approx(2 * each)
    busy = step.compute_seconds + step.unequal_seconds
    assert step.bubble_seconds == pytest.approx(busy * 1 / 4)


def test_a_slow_link_keeps_the_pipeline_waiting_all_the_time():
    plan = pl.Plan("pp", 2, batch=8, seq=128, micro_batches=4, precision="bf16")
    near, far = time(plan), time(plan, nodes=2)
    each = 10e-6 + 2 * 128 * 64 * 2 / 0.1e9
    forward = (near.compute_seconds + near.unequal_seconds) / 4 / 3  # of the slower rank
    assert each > forward
    # Two transfers while it fills and drains, and eight that outlast the pass they hide behind.
    assert far.exposed_seconds["pp"] == pytest.approx(2 * each + 8 * (each - forward))
    assert far.hidden_seconds == pytest.approx(8 * forward)
    assert far.compute_seconds == near.compute_seconds


PLANS = [
    pl.Plan("ddp", 4, batch=16, micro_batches=2),
    pl.Plan("zero1", 4, batch=16),
    pl.Plan("zero2", 4, batch=16, micro_batches=2),
    pl.Plan("zero3", 4, batch=16, micro_batches=2, precision="bf16"),
    pl.Plan("zero1-torch", 4, batch=16),
    pl.Plan("dp", 4, batch=16, micro_batches=2),
    pl.Plan("tp", 4, batch=16),
    pl.Plan("tp", 4, batch=16, recompute="full", micro_batches=2),
    pl.Plan("tp", 4, batch=16, sequence_parallel=True),
    pl.Plan("tp", 4, batch=16, sequence_parallel=True, recompute="full", precision="bf16"),
    pl.Plan("3d", dp=2, pp=2, tp=2, zero=3, batch=16, micro_batches=4),
    pl.Plan("3d", dp=2, pp=1, tp=4, zero=2, batch=16, micro_batches=4),
    pl.Plan("dp+pp", dp=4, pp=2, zero=0, batch=16, schedule="interleaved", micro_batches=4),
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("axis", ["dp", "tp"])
def test_seconds_are_those_of_the_bytes_that_are_sent(plan, axis):
    """Without latency, overlap and padding, waiting is the wire bytes of `predict.communication`
    over the bandwidth, of the rank that sends most.
    """
    big = pl.Model("mini", vocab=1024)
    if getattr(plan, axis) == 1:
        return
    free = pl.Hardware(GPU, 1, plan.devices, link=Link("bus", 10e9, 0.0))
    waited = step_time(big, plan, free, WHOLE).exposed_seconds[axis]
    ranks = [plan.coordinates(rank) for rank in range(plan.devices)]
    sent = max(
        sum(
            wire_bytes(op, payload, getattr(plan, axis), position=1 if op == "reduce" else 0)
            for (op, on), payload in payload_per_step(big, plan, coords).items()
            if on == axis and op != "gather"
        )
        for coords in ranks
        if coords["dp"] == 0
    )
    if plan.data == "dp" and axis == "dp":  # scatter of ids and logits, gather of logits
        sent += wire_bytes("all_gather", plan.batch * plan.seq * big.vocab * 4, plan.dp)
    assert waited == pytest.approx(sent / 10e9, rel=0.02)


# The whole.


def test_the_parts_add_up():
    plan = pl.Plan("3d", dp=2, pp=2, tp=2, zero=3, batch=32, seq=128, micro_batches=8,
                   recompute="full", precision="bf16")  # fmt: skip
    step = time(plan, efficiency=Efficiency(), nodes=2)
    assert list(step.parts()) == [
        "computing", "recomputing", "unequal stages", "pipeline bubble", "tp communication",
        "pp communication", "dp communication", "optimizer",
    ]  # fmt: skip
    assert all(seconds > 0 for seconds in step.parts().values())
    assert sum(step.parts().values()) == step.seconds
    assert step.tokens == 32 * 128
    assert step.to_dict()["tokens_per_second"] == step.tokens / step.seconds


def test_the_slowest_pipeline_rank_sets_the_pace():
    """Where the vocabulary is large, the last stage is the slowest although it has fewer blocks."""
    plan = pl.Plan("pp", 2, batch=8, seq=128, micro_batches=4)
    sizes = dict(hidden=64, heads=4, ffn=256, vocab=50_000)
    both = step_time(pl.Model("wide", layers=2, **sizes), plan, hardware(2), WHOLE)
    alone = pl.Plan("single", batch=8, seq=128, micro_batches=4)
    last = step_time(pl.Model("wide", layers=1, **sizes), alone, hardware(1), WHOLE)
    # The second stage is a model of one layer without its embedding.
    assert 0.98 < (both.compute_seconds + both.unequal_seconds) / last.compute_seconds < 1
    # The first has a layer and no head, which is nearly all of the work: half of the ranks wait.
    assert both.unequal_seconds == pytest.approx(both.compute_seconds, rel=0.05)


def test_equal_stages_wait_for_nobody():
    plan = pl.Plan("3d", dp=1, pp=1, tp=2, batch=8, seq=128, micro_batches=4)
    assert time(plan).unequal_seconds == 0


@pytest.mark.parametrize(
    "given", [{"matmul": 0}, {"memory": 1.5}, {"link": -1}, {"overlap": float("nan")}]
)
def test_an_efficiency_is_a_part(given):
    with pytest.raises(pl.HardwareError, match="must be a number from"):
        Efficiency(**given)


@pytest.mark.bench
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zbv"])
def test_an_estimate_is_quick(schedule):
    plan = pl.Plan("3d", dp=2, pp=4, tp=2, zero=1, batch=256, seq=4096, micro_batches=128,
                   schedule=schedule, precision="bf16")  # fmt: skip
    large, h100 = pl.Model("llama-3.1-70b"), pl.Hardware("h100", nodes=2)
    step_time(large, plan, h100)
    assert min(timeit.repeat(lambda: step_time(large, plan, h100), number=10, repeat=5)) < 10 * 1e-3


# Published runs. An estimate, so within a third; what is compared is FLOP/s of the model.


def megatron(layers, hidden, heads):
    return pl.Model("gpt", layers=layers, hidden=hidden, heads=heads, ffn=4 * hidden, vocab=51_200,
                    context=2048, tied=True, mlp="plain", activation="gelu", norm="layer",
                    positions="learned")  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "tp", "pp", "gpus", "batch", "micro_batch", "published"),
    [
        ((24, 2304, 24), 1, 1, 32, 512, 16, 137),
        ((30, 3072, 32), 2, 1, 64, 512, 16, 138),
        ((36, 4096, 32), 4, 1, 128, 512, 16, 142),
        ((40, 6144, 48), 8, 1, 256, 1024, 4, 135),
        ((48, 8192, 64), 8, 2, 512, 1536, 4, 138),
        ((60, 10240, 80), 8, 4, 1024, 1792, 2, 140),
        ((80, 12288, 96), 8, 8, 1536, 2304, 2, 148),
        ((96, 16384, 128), 8, 16, 1920, 2160, 1, 155),
        ((105, 20480, 128), 8, 35, 2520, 2520, 1, 163),
        ((128, 25600, 160), 8, 64, 3072, 3072, 1, 163),
    ],
)
def test_megatron_lm_on_up_to_3072_a100(sizes, tp, pp, gpus, batch, micro_batch, published):
    """arXiv:2104.04473, table 1; its FLOP/s count recomputation, a quarter of the work."""
    dp = gpus // tp // pp
    plan = pl.Plan("3d", dp=dp, pp=pp, tp=tp, zero=0, batch=batch, seq=2048, precision="bf16",
                   recompute="full", micro_batches=batch // dp // micro_batch)  # fmt: skip
    a100 = pl.Hardware("a100-80", nodes=gpus // 8, interconnect="infiniband-200")
    step = step_time(megatron(*sizes), plan, a100)
    tflops = step.model_flops / step.seconds / gpus / 1e12
    assert 0.75 < tflops / (0.75 * published) < 1.33


@pytest.mark.parametrize(("devices", "published"), [(8, 5762), (128, 5605)])
def test_torchtitan_with_fsdp_on_h100(devices, published):
    """benchmarks/llama3_h100_202412_torchtitan.md, selective recomputation, without compile, on
    H100s of 500 W with memory at 2.4 TB/s: slower than those of the data sheet.
    """
    found = {}
    for recompute in ("none", "full"):
        plan = pl.Plan("zero3", devices, batch=2 * devices, seq=8192, precision="bf16",
                       recompute=recompute)  # fmt: skip
        step = step_time(pl.Model("llama-3.1-8b"), plan, pl.Hardware("h100", devices // 8))
        found[recompute] = step.tokens_per_second / devices
    assert 4500 < found["full"] < found["none"] < 9000
    assert 1 < found["full"] / published < 1.33


def test_llama_3_1_405b_on_8192_h100():
    """arXiv:2407.21783, table 4: 430 TFLOP/s on each GPU with TP 8, PP 16, FSDP 64."""
    plan = pl.Plan("3d", dp=64, pp=16, tp=8, zero=2, batch=2048, seq=8192, micro_batches=32,
                   schedule="interleaved", sequence_parallel=True, precision="bf16")  # fmt: skip
    step = step_time(pl.Model("llama-3.1-405b"), plan, pl.Hardware("h100", nodes=1024))
    assert 0.75 < step.model_flops / step.seconds / 8192 / 430e12 < 1.33
