"""Plan: degrees, defaults, and the one sentence for each request that cannot work."""

import re

import pytest

import parallab as pl
from parallab.catalog import STRATEGIES
from parallab.plan import MAX_STEPS, check_steps, why_not

DATA_PARALLEL = [name for name, row in STRATEGIES.items() if row.axes == ("dp",)]


@pytest.mark.parametrize("strategy", DATA_PARALLEL)
def test_defaults_of_a_data_parallel_strategy(strategy):
    plan = pl.Plan(strategy)
    assert (plan.devices, plan.dp, plan.pp, plan.tp) == (4, 4, 1, 1)
    assert (plan.batch, plan.seq, plan.micro_batches) == (8, 128, 1)
    assert (plan.precision, plan.recompute, plan.optimizer) == ("fp32", "none", "adamw")


def test_defaults_of_single():
    plan = pl.Plan("single")
    assert (plan.devices, plan.dp, plan.pp, plan.tp, plan.batch) == (1, 1, 1, 1, 2)
    assert pl.Plan("single", 1) == plan


def test_plan_without_arguments_is_ddp():
    assert pl.Plan() == pl.Plan("ddp", 4)


def test_devices_follow_a_given_degree():
    assert pl.Plan("zero3", dp=2).devices == 2
    assert pl.Plan("zero3", dp=3, pp=1, tp=1).devices == 3


def test_batch_default_grows_with_micro_batches():
    plan = pl.Plan("ddp", 2, micro_batches=3)
    assert (plan.batch, plan.rank_batch, plan.micro_batch) == (12, 6, 2)


@pytest.mark.parametrize(
    ("strategy", "zero"),
    [("single", 0), ("dp", 0), ("ddp", 0), ("zero1", 1), ("zero1-torch", 1), ("zero2", 2),
     ("zero3", 3)],
)  # fmt: skip
def test_zero_stage(strategy, zero):
    assert pl.Plan(strategy).zero == zero
    assert pl.Plan(strategy).to_dict()["zero"] == zero


@pytest.mark.parametrize(("precision", "bytes_"), [("fp32", 4), ("bf16", 2)])
def test_element_bytes(precision, bytes_):
    assert pl.Plan(precision=precision).element_bytes == bytes_


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_dict_round_trip(strategy):
    plan = pl.Plan(strategy, seq=32, precision="bf16", optimizer="sgd", recompute="full")
    assert pl.Plan.from_dict(plan.to_dict()) == plan


def test_to_dict_is_complete():
    assert pl.Plan("zero3", 2, batch=6, seq=16, micro_batches=3, recompute="full").to_dict() == {
        "strategy": "zero3", "devices": 2, "dp": 2, "pp": 1, "tp": 1, "zero": 3, "batch": 6,
        "seq": 16, "micro_batches": 3, "schedule": "1f1b", "sequence_parallel": False,
        "precision": "fp32", "recompute": "full", "optimizer": "adamw", "clip": None,
    }  # fmt: skip


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_alone_keeps_the_global_batch(strategy):
    micro = 1 if strategy == "mp" else 4
    plan = pl.Plan(strategy, batch=16, micro_batches=micro, optimizer="sgd", recompute="full")
    alone = plan.alone()
    assert (alone.strategy, alone.devices, alone.dp) == ("single", 1, 1)
    assert (alone.batch, alone.seq, alone.micro_batches) == (16, 128, micro)
    assert (alone.optimizer, alone.recompute) == ("sgd", "full")


def test_str():
    plan = pl.Plan("zero3", devices=4, batch=8, seq=128)
    assert str(plan) == ("zero3 on 4 (dp=4 pp=1 tp=1), batch 8 × 128 in 1 micro-batch, fp32, adamw")


def test_str_of_a_composition():
    plan = pl.Plan("3d", 8, zero=2, sequence_parallel=True, clip=1.0)
    assert str(plan) == (
        "3d on 8 (dp=2 pp=2 tp=2), ZeRO-2, 1f1b, sequence parallel, batch 16 × 128 in "
        "4 micro-batches, fp32, adamw, clipped to 1"
    )


def test_a_plan_is_hashable_and_frozen():
    plan = pl.Plan()
    assert len({plan, pl.Plan()}) == 1
    with pytest.raises(AttributeError):
        plan.batch = 3


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (dict(strategy="zero4"), "There is no strategy called 'zero4'. Choose one of single, dp, "),
        (dict(strategy=None), "There is no strategy called None."),
        (dict(strategy=["ddp"]), "There is no strategy called ['ddp']."),
        (dict(devices=0), "devices=0 must be a whole number from 1 to 65,536."),
        (dict(devices=-4), "devices=-4 must be a whole number"),
        (dict(devices=65_537), "devices=65537 must be a whole number from 1 to 65,536."),
        (dict(devices=4.0), "devices=4.0 must be a whole number"),
        (dict(devices="4"), "devices='4' must be a whole number"),
        (dict(devices=True), "devices=True must be a whole number"),
        (dict(dp=0), "dp=0 must be a whole number"),
        (dict(seq=0), "seq=0 must be a whole number from 1 to 1,048,576."),
        (dict(seq=None), "seq=None must be a whole number from 1 to 1,048,576."),
        (dict(seq=10**12), "seq=1000000000000 must be a whole number"),
        (dict(batch=0), "batch=0 must be a whole number from 1 to 1,048,576."),
        (dict(micro_batches=0), "micro_batches=0 must be a whole number from 1 to 65,536."),
        (dict(devices=65_536, micro_batches=65_536),
         "batch=8589934592 must be a whole number from 1 to 1,048,576."),
        (dict(devices=4, dp=2), "dp=2 × pp=1 × tp=1 is 2 ranks, but devices=4; the degrees' "),
        (dict(tp=2), "tp=2 does not go with ddp, which splits only dp."),
        (dict(strategy="zero3", devices=4, dp=2, pp=2), "pp=2 does not go with zero3"),
        (dict(strategy="single", dp=2), "dp=2 does not go with single, which splits nothing."),
        (dict(strategy="single", devices=2), "single runs on one device, not 2; for 2 devices "),
        (dict(batch=3), "A batch of 3 sequences does not divide over 4 data-parallel ranks = 4 "
         "equal parts; choose a batch of 4 or 8."),
        (dict(batch=10), "choose a batch of 8 or 12."),
        (dict(devices=1, batch=3, micro_batches=2), "over 1 data-parallel rank × 2 micro-batches "
         "= 2 equal parts; choose a batch of 2 or 4."),
        (dict(precision="fp16"), "precision='fp16' is not one of fp32, bf16."),
        (dict(precision=None), "precision=None is not one of fp32, bf16."),
        (dict(recompute=True), "recompute=True is not one of none, full."),
        (dict(optimizer="Adam"), "optimizer='Adam' is not one of adamw, sgd."),
    ],
)  # fmt: skip
def test_what_cannot_work(choices, message):
    with pytest.raises(pl.PlanError, match=re.escape(message)):
        pl.Plan(**choices)


def test_the_batch_that_the_message_offers_works():
    with pytest.raises(pl.PlanError) as refused:
        pl.Plan("ddp", 3, batch=10, micro_batches=2)
    offered = [int(n) for n in re.findall(r"batch of (\d+) or (\d+)\.", str(refused.value))[0]]
    assert offered == [6, 12]
    for batch in offered:
        pl.Plan("ddp", 3, batch=batch, micro_batches=2)


def test_sequence_must_fit_the_model():
    pl.Plan(seq=1024).check(pl.Model("nano"))
    with pytest.raises(pl.PlanError, match=re.escape("choose seq=1024 or less")):
        pl.Plan(seq=1025).check(pl.Model("nano"))


def test_why_not():
    nano = pl.Model("nano")
    assert why_not(nano, strategy="zero3", devices=4, batch=8) is None
    assert "choose a batch of 4 or 8" in why_not(nano, strategy="zero3", devices=4, batch=6)
    assert "seq=1024 or less" in why_not(nano, seq=2000)
    assert "no strategy called" in why_not(nano, strategy="none")


@pytest.mark.parametrize("steps", [1, 5, MAX_STEPS])
def test_steps(steps):
    assert check_steps(steps) == steps


@pytest.mark.parametrize("steps", [0, -1, MAX_STEPS + 1, 1.0, "5", None, True])
def test_bad_steps(steps):
    with pytest.raises(pl.PlanError, match=r"must be a whole number from 1 to 100,000\."):
        check_steps(steps)


@pytest.mark.parametrize("ask", [pl.predict, pl.simulate, pl.take_home])
def test_what_is_no_model_or_no_plan_is_refused_in_a_sentence(ask):
    with pytest.raises(pl.ModelError, match=r"model='nano' is not a Model; Model\('nano'\)"):
        ask("nano", pl.Plan("ddp"))
    with pytest.raises(pl.PlanError, match=r"plan='ddp' is not a Plan; Plan\('ddp', devices=4\)"):
        ask(pl.Model("nano"), "ddp")
