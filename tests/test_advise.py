"""Advice: the table decided from bytes, every plan searched, each reason with its number."""

import json
import time

import pytest

import parallab as pl
from parallab.advise.candidates import Task, floors, limits, search, shapes, unlike_ranks, variants
from parallab.datasheets import GPUS
from parallab.predict import predict
from parallab.predict.peaks import peak_memory
from parallab.predict.time import step_time
from parallab.units import GIB
from tests.models.rows import MIXTURE


def task(name="mini", batch=16, seq=128, precision="bf16"):
    return Task(pl.Model(name), batch, seq, precision, "adamw")


def constant(*needs):
    """Every plan needs the same: one number for all, or one for each part of the pipeline."""
    return lambda plan, pp: needs[pp * len(needs) // plan.pp]


def peaks(model, plan, kernels="cuda"):
    """The predicted peak of every rank."""
    return [peak_memory(model, plan, rank, kernels).peak_bytes for rank in range(plan.devices)]


@pytest.fixture(scope="module")
def seventy():
    """The question that people come with."""
    return pl.advise("llama-3.1-70b", gpu="h100", nodes=2, gpus_per_node=8, interconnect="fast")


# The search.


def test_shapes_are_every_way_to_split():
    found = list(shapes(8))
    assert {(s.dp, s.pp, s.tp) for s in found} == {
        (dp, pp, tp)
        for dp in (1, 2, 4, 8) for pp in (1, 2, 4, 8) for tp in (1, 2, 4, 8) if dp * pp * tp == 8
    }  # fmt: skip
    assert {s.zero for s in found if s.dp > 1} == {0, 1, 2, 3}
    assert {s.zero for s in found if s.dp == 1} == {0}
    assert {s.schedule for s in found if s.pp > 1} == {"1f1b", "interleaved", "zbv"}
    assert len(found) == len(set(found))


@pytest.mark.parametrize(
    ("degrees", "strategy", "family"),
    [
        ((1, 1, 1, 0), "single", "one GPU"),
        ((4, 1, 1, 0), "ddp", "DDP"),
        ((4, 1, 1, 2), "zero2", "ZeRO-2"),
        ((1, 4, 1, 0), "pp", "pipeline"),
        ((1, 1, 4, 0), "tp", "tensor"),
        ((2, 2, 1, 1), "dp+pp", "pipeline + data, ZeRO-1"),
        ((2, 1, 2, 3), "3d", "tensor + data, ZeRO-3"),
        ((1, 2, 2, 0), "3d", "tensor + pipeline"),
        ((2, 2, 2, 0), "3d", "tensor + pipeline + data, DDP"),
    ],
)
def test_shapes_have_a_strategy_and_a_name(degrees, strategy, family):
    shape = next(s for s in shapes(degrees[0] * degrees[1] * degrees[2]) if s[:4] == degrees)
    assert (shape.strategy, shape.family) == (strategy, family)
    plan = variants(task(), shape)[0]
    assert (plan.strategy, plan.dp, plan.pp, plan.tp, plan.zero) == (strategy, *degrees)


def test_variants_are_every_micro_batch_and_the_first_needs_least():
    shape = next(s for s in shapes(8) if s[:4] == (2, 1, 4, 0))
    plans = variants(task(), shape)
    assert len(plans) == 4 * 2 * 2  # micro-batches of 1 to 8, recomputation, sequence parallelism
    needs = [max(peaks(task().model, plan)) for plan in plans]
    assert min(needs) == needs[0]


def test_the_search_finds_what_trying_everything_finds():
    chosen, hardware = task(), pl.Hardware("t4", 2, 4, free_bytes=200 * 2**20, headroom=0)

    def need(plan, pp):  # some families fit, some only with some variants, some not at all
        return 2 * floors(chosen, plan)[pp] + 150 * 2**20

    found = search(chosen, hardware, need, limit=10_000)
    best, families = {}, set()
    for shape in shapes(8):
        for plan in variants(chosen, shape):
            families.add(shape.family)
            if max(need(plan, pp) for pp in range(plan.pp)) <= 200 * 2**20:
                seconds = step_time(chosen.model, plan, hardware).seconds
                best[shape] = min(best.get(shape, seconds), seconds)
    assert {c.shape for c in found.fitting} == set(best)
    for candidate in found.fitting:
        assert candidate.step.seconds <= best[candidate.shape] * 1.01
    assert set(found.rejected) == families - {shape.family for shape in best}
    assert best
    assert found.rejected


def test_asking_for_fewer_gives_the_same_first_ones():
    hardware = pl.Hardware("a100-40")
    chosen = task("llama-3.1-8b", 64, 1024)

    def need(plan, pp):
        return floors(chosen, plan)[pp]

    every = search(chosen, hardware, need, limit=10_000)
    few = search(chosen, hardware, need, limit=5)
    assert [c.plan for c in few.fitting[:5]] == [c.plan for c in every.fitting[:5]]
    assert {c.shape.family for c in few.fitting} == {c.shape.family for c in every.fitting}
    assert few.rejected.keys() == every.rejected.keys()


def test_the_simpler_of_equals_comes_first():
    found = search(task(), pl.Hardware("h100"), constant(1))
    seconds = [candidate.step.seconds for candidate in found.fitting]
    for earlier, later in zip(found.fitting, found.fitting[1:], strict=False):
        assert earlier.step.seconds < later.step.seconds * 1.03
    assert found.fitting[0].step.seconds < 1.02 * min(seconds)


def test_the_gpu_with_least_memory_decides_for_the_ranks_on_it():
    uneven = pl.Hardware("t4", 1, 4, free_bytes=[10 * GIB] * 3 + [4 * GIB], headroom=0)
    nothing = search(task(), uneven, constant(5 * GIB))
    assert nothing.fitting == []
    assert {c.room_bytes for c in nothing.rejected.values()} == {4 * GIB}
    # Where the last stage needs less, it may have the smaller GPUs.
    halves = pl.Hardware("t4", 1, 4, free_bytes=[10 * GIB] * 2 + [4 * GIB] * 2, headroom=0)
    staged = search(task(), halves, constant(8 * GIB, 3 * GIB))
    assert staged.fitting
    assert all(c.plan.pp > 1 for c in staged.fitting)
    assert {(c.need_bytes, c.room_bytes) for c in staged.fitting} == {(3 * GIB, 4 * GIB)}


def test_why_other_degrees_cannot_be():
    assert limits(task("llama-3.1-70b", 100, 4096), 16) == [
        "llama-3.1-70b has kv_heads=8, which does not divide by tp=16; tp may be 1, 2, 4, 8.",
        "A batch of 100 sequences does not divide over 8 data-parallel ranks = 8 equal parts; "
        "choose a batch of 96 or 104.",
    ]
    assert limits(task("nano"), 4)[1].startswith("nano has 2 layers, fewer than the 4 stages")


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "mini"])
def test_what_is_ruled_out_unpredicted_would_not_have_fitted(name, precision):
    chosen = task(name, 32, 256, precision)
    for shape in shapes(8):
        for plan in variants(chosen, shape)[::5]:
            for pp, floor in enumerate(floors(chosen, plan)):
                last = (pp + 1) * plan.dp * plan.tp - 1  # of the pipeline rank's, that with least
                assert floor <= peak_memory(chosen.model, plan, last, "cuda").peak_bytes, plan


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zbv"])
@pytest.mark.parametrize(
    ("name", "degrees", "micro_batches"),
    [
        ("llama-3.1-8b", dict(dp=1, pp=8, tp=1), 8),
        ("llama-3.1-8b", dict(dp=2, pp=8, tp=2), 32),
        ("qwen2.5-7b", dict(dp=1, pp=4, tp=4), 16),
        ("llama-3.1-70b", dict(dp=1, pp=32, tp=1), 64),
        ("gpt2", dict(dp=2, pp=4, tp=3), 4),
    ],
)
def test_the_fullest_rank_is_among_those_that_are_asked(name, degrees, micro_batches, schedule):
    model = pl.Model(name)
    plan = pl.Plan("3d", **degrees, batch=micro_batches * degrees["dp"], seq=512, schedule=schedule,
                   micro_batches=micro_batches, precision="bf16", zero=1)  # fmt: skip
    held, of_stage = peaks(model, plan), plan.dp * plan.tp
    assert max(held) == max(held[pp * of_stage] for pp in unlike_ranks(model, plan.pp, schedule))


# The field's table.


@pytest.mark.parametrize(
    ("model", "given", "situation", "strategies"),
    [
        ("gpt2", dict(gpu="t4", gpus_per_node=4),
         "One node, and the model fits on one GPU", ("ddp", "zero1", "zero2", "zero3")),
        ("llama-3.1-8b", dict(gpu="h100"),
         "One node, and the model does not fit on one GPU", ("pp", "zero3", "tp")),
        ("llama-3.1-405b", dict(gpu="a10", seq=1024),
         "One node, and the largest layer does not fit on one GPU", ("tp", "zero3")),
        ("llama-3.1-70b", dict(gpu="h100", nodes=2),
         "Several nodes with a fast link", ("zero3", "3d")),
        ("llama-3.1-8b", dict(gpu="h100", nodes=2, interconnect="slow"),
         "Several nodes with a slow link", ("3d", "dp+pp", "zero3")),
        ("gpt2", dict(gpu="t4", gpus_per_node=1), "One GPU, and the model fits", ("single",)),
        ("llama-3.1-8b", dict(gpu="t4", gpus_per_node=1),
         "One GPU, and the model does not fit", ()),
    ],
)  # fmt: skip
def test_the_first_answer_is_the_fields_table(model, given, situation, strategies):
    rule = pl.advise(model, **given).rule
    assert rule.situation.startswith(situation)
    assert rule.strategies == strategies
    assert "Hugging Face" in rule.source


def test_the_table_says_the_bytes_that_decide():
    rule = pl.advise("llama-3.1-8b", gpu="h100").rule
    one = pl.Plan("single", batch=1, seq=4096, precision="bf16")
    need = max(peaks(pl.Model("llama-3.1-8b"), one))
    assert need > 16 * 8_030_261_248  # model states alone
    assert f"hold {need / GIB:,.1f} GiB, and 71.3 GiB is there to fill" in rule.reason
    # 128,256 x 4,096 weights and the final norm, 16 bytes each.
    assert "the head, fits: 7.8 GiB" in rule.reason


# The question that people come with.


def test_seventy_billion_on_sixteen_h100(seventy):
    best = seventy.best
    assert best is not None
    assert best.need_bytes <= best.room_bytes == int(GPUS["h100"].memory_bytes * 0.9)
    # 16 bytes of 70.55 billion parameters are 65.7 GiB on each of 16.
    assert best.need_bytes > 16 * 70_553_706_496 / 16
    assert best.need_bytes == predict(seventy.model, best.plan, kernels="cuda").peak_bytes
    assert len(seventy.options) >= 3
    assert best.plan.tp > 1  # activations must be shared out as well
    assert "tensor axis stays inside a node" in best.reason


def test_every_plan_that_is_suggested_is_valid(seventy):
    for advice in (seventy, pl.advise("qwen3-8b", gpu="a100-80", gpus_per_node=6)):
        for option in (*advice.options, *advice.slower):
            plan = pl.Plan.from_dict(option.plan.to_dict())
            plan.check(advice.model)
            assert plan.devices == advice.hardware.devices
            assert (plan.batch, plan.seq) == (advice.batch, advice.seq)
            assert option.need_bytes == max(peaks(advice.model, plan)) <= option.room_bytes
            assert option.step == step_time(advice.model, plan, advice.hardware)


def test_each_rejection_has_its_number(seventy):
    assert seventy.rejections
    fitting = {option.family for option in (*seventy.options, *seventy.slower)}
    for rejection in seventy.rejections:
        assert rejection.family not in fitting
        assert rejection.need_bytes > rejection.room_bytes
        assert rejection.need_bytes == max(peaks(seventy.model, rejection.plan))
    by_family = {rejection.family: rejection for rejection in seventy.rejections}
    # 4 + 12/16 bytes of each parameter, and 2 + 14/16: activations come on top.
    assert by_family["ZeRO-1"].need_bytes > (4 + 12 / 16) * 70_553_706_496
    assert by_family["ZeRO-2"].need_bytes > (2 + 14 / 16) * 70_553_706_496
    need = by_family["ZeRO-2"].need_bytes / GIB
    assert by_family["ZeRO-2"].reason.startswith(f"ZeRO-2 needs {need:,.1f} GiB of 71.3 GiB: dp=16")
    assert f"ZeRO-2 needs {need:,.1f} GiB" in str(seventy)
    assert "does not divide by tp=16; tp may be 1, 2, 4, 8." in str(seventy)


def test_a_rejected_family_stands_with_the_least_it_could_need(seventy):
    found = {r.family: r for r in seventy.rejections}["pipeline + data, ZeRO-3"]
    asked = task("llama-3.1-70b", seventy.batch, seventy.seq)
    least = [
        max(peaks(asked.model, plans[0]))
        for shape in shapes(16)
        if shape.family == found.family and (plans := variants(asked, shape))
    ]
    assert len(least) > 5
    assert found.need_bytes == min(least)
    assert (found.plan.dp, found.plan.pp) == (2, 8)


def test_what_else_rules_plans_out_or_slows_them_down():
    cards = pl.advise("llama-2-7b", gpu="rtx-4090", nodes=1, gpus_per_node=1)
    assert "8 such GPUs would do: ZeRO-3 with dp=8" in cards.remedy  # eight nodes: no tensor axis
    old = str(pl.advise("qwen2.5-0.5b", gpu="t4", gpus_per_node=4))
    assert "T4 16 GB has no bf16 units: its speed is float16's." in old
    experts = pl.advise(pl.Model("mine", **MIXTURE), gpu="h100", nodes=2, batch=16, seq=64)
    assert "ZeRO-3 deals out the 8 experts of a block whole" in str(experts)
    head = pl.advise("llama-3.2-1b", gpu="h100").kind("pipeline")
    assert "unequal stages 5" in head.reason  # the last holds the head
    assert 0.5 < head.step.unequal_seconds / head.step.seconds < 0.6


@pytest.mark.bench
def test_the_answer_comes_quickly():
    started = time.process_time()
    pl.advise("llama-3.1-70b", gpu="h100", nodes=2)
    assert time.process_time() - started < 5


def test_a_thousand_gpus_are_answered_too():
    advice = pl.advise("llama-3.1-405b", gpu="h100", nodes=128)
    assert advice.best is not None
    assert advice.hardware.devices == advice.best.plan.devices == 1024


def test_what_fits_nowhere_is_said_with_what_would_help():
    advice = pl.advise("llama-3.1-70b", gpu="a100-40")
    assert advice.best is None
    assert advice.options == advice.slower == ()
    least = min(rejection.need_bytes for rejection in advice.rejections)
    assert f"the least that a GPU would have to hold is {least / GIB:,.1f} GiB" in advice.remedy
    assert "35.4 GiB is there" in advice.remedy
    # 16 bytes of 70.55 billion parameters over 32 are 32.9 GiB.
    assert "32 such GPUs would do" in advice.remedy
    assert "8 × B200 SXM 180 GB (178.3 GiB) would do." in advice.remedy
    assert advice.remedy in str(advice)
    more = pl.advise("llama-3.1-70b", gpu="a100-40", nodes=4)
    assert more.best is not None


def test_a_larger_gpu_is_named_where_one_would_do():
    advice = pl.advise("llama-3.1-8b", gpu="t4", gpus_per_node=4)
    assert advice.best is None
    assert "4 × A100 SXM 40 GB (39.4 GiB) would do." in advice.remedy


def test_a_slow_network_keeps_the_bandwidth_hungry_axes_inside_a_node():
    best = pl.advise("llama-3.1-8b", gpu="h100", nodes=4, interconnect="slow").best
    assert best.plan.pp == 4
    fast = pl.advise("llama-3.1-8b", gpu="h100", nodes=4, interconnect="fast").best
    assert fast.step.seconds < best.step.seconds / 1.5


def test_more_memory_in_use_by_others_asks_for_more_sharding():
    alone = pl.advise("llama-3.2-1b", gpu="a100-80", gpus_per_node=4)
    shared = pl.advise("llama-3.2-1b", gpu="a100-80", gpus_per_node=4,
                       free_bytes=[12 * GIB, 70 * GIB, 70 * GIB, 70 * GIB])  # fmt: skip
    assert {o.family for o in alone.options} > {"DDP"}
    assert "DDP" in {rejection.family for rejection in shared.rejections}
    assert shared.best is not None
    assert all(o.room_bytes == int(12 * GIB * 0.9) for o in shared.options if o.plan.pp == 1)


def test_a_headroom_of_ones_own():
    tight = pl.advise("llama-3.1-8b", gpu="h100", headroom=0.5)
    assert all(option.room_bytes == int(79.18 * GIB * 0.5) for option in tight.options)
    assert "headroom 50 %" in str(tight)


def test_hardware_may_be_given_whole():
    hardware = pl.Hardware("h100", gpus_per_node=4)
    assert pl.advise("gpt2", hardware) == pl.advise("gpt2", gpu="h100", gpus_per_node=4)
    with pytest.raises(pl.HardwareError, match="Give one of hardware"):
        pl.advise("gpt2", hardware, gpu="h100")


def test_ranks_on_this_machine():
    advice = pl.advise("mini", devices=4, free_bytes=2 * GIB)
    assert (advice.batch, advice.seq, advice.precision) == (16, 128, "fp32")
    assert advice.rule.strategies == ("ddp", "zero1", "zero2", "zero3")
    assert {"DDP", "ZeRO-3", "pipeline", "tensor"} <= {
        option.family for option in (*advice.options, *advice.slower)
    }
    assert "4 ranks on this machine" in str(advice)
    assert "Speeds are assumed" in str(advice)
    assert advice.best.need_bytes == max(peaks(advice.model, advice.best.plan, "cpu"))


def test_a_mixture_of_experts_is_not_split_over_the_tensor_axis():
    mixture = pl.Model("moe", layers=8, hidden=1024, heads=16, ffn=2816, vocab=32_000,
                       experts=8, experts_per_token=2, expert_ffn=2816)  # fmt: skip
    advice = pl.advise(mixture, gpu="a100-40", seq=1024)
    assert advice.best is not None
    assert all(option.plan.tp == 1 for option in (*advice.options, *advice.slower))
    assert any("choose tp=1" in sentence for sentence in advice.impossible)


def test_a_batch_of_about_a_million_tokens_unless_given():
    assert pl.advise("gpt2", gpu="h100", gpus_per_node=8).batch == 1024  # of 1,024 tokens
    assert pl.advise("llama-3.1-8b", gpu="h100", gpus_per_node=6).batch % 6 == 0
    assert pl.advise("llama-3.1-8b", gpu="h100", batch=48, seq=512).batch == 48


def test_advice_is_plain_data(seventy):
    data = json.loads(json.dumps(seventy.to_dict(), allow_nan=False))
    assert data["rule"]["strategies"] == ["zero3", "3d"]
    first = data["options"][0]
    assert pl.Plan.from_dict(first["plan"]) == seventy.best.plan
    assert first["need_bytes"] == seventy.best.need_bytes
    assert first["step"]["seconds"] == pytest.approx(seventy.best.step.seconds)
    assert data["rejections"][0]["reason"] == seventy.rejections[0].reason
    assert data["task"] == {"batch": 256, "seq": 4096, "precision": "bf16", "optimizer": "adamw"}
    assert data["hardware"]["gpu"]["name"] == "h100"


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({}, pl.HardwareError, "advise needs a GPU, one of t4"),
        ({"devices": 4}, pl.HardwareError, "or devices and free_bytes"),
        ({"gpu": "h100", "devices": 4}, pl.HardwareError, "Give one of hardware, a gpu (with"),
        ({"gpu": "h1000"}, pl.HardwareError, "There is no GPU called 'h1000'"),
        ({"gpu": "h100", "seq": 10**6}, pl.PlanError, "longer than the 2048 tokens"),
        ({"gpu": "h100", "batch": 0}, pl.PlanError, "batch=0 must be a whole number"),
        ({"gpu": "h100", "limit": 0}, pl.PlanError, "limit=0 must be a whole number from 1 up"),
        ({"gpu": "h100", "precision": "fp8"}, pl.PlanError, "precision='fp8' is not one of"),
        ({"devices": 0, "free_bytes": GIB}, pl.HardwareError, "gpus_per_node=0 must be"),
        ({"devices": 2, "free_bytes": [GIB]}, pl.HardwareError, "names 1 GPUs, and there are 2"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_words(given, error, message):
    with pytest.raises(error) as caught:
        pl.advise("mini", **given)
    assert message in str(caught.value)


def test_an_unknown_model_is_refused_in_words():
    with pytest.raises(pl.ModelError, match="There is no model called 'lama'"):
        pl.advise("lama", gpu="h100")
