"""The run panel's inputs: what they offer, what they propose, and the plan that they make."""

from __future__ import annotations

import itertools
import time

import pytest

from parallab.catalog import STRATEGIES
from parallab.cluster.room import check_fits
from parallab.errors import PlanError
from parallab.models.spec import Model
from parallab.panels import controls as controls_module
from parallab.panels.controls import SOMETIMES, Controls
from parallab.panels.parts import Look
from parallab.panels.proposals import degrees_of, propose
from parallab.plan import Plan, why_not
from tests.synthetic import FakeRunner


def controls_of(max_devices: int = 8, model: str = "mini") -> Controls:
    controls = Controls(FakeRunner(max_devices), Look(), lambda: None)
    controls._menu.widget.value = model
    return controls


def choose(controls: Controls, **choices) -> None:
    """Clicks, or types, one after the other."""
    for name, value in choices.items():
        if name in controls._numbers:
            controls._numbers[name].value = value
        else:
            assert not button(controls, name, value).disabled, button(controls, name, value).tooltip
            button(controls, name, value).click()


def button(controls: Controls, name: str, value):
    return controls._choices[name]._buttons[value]


def shown(controls: Controls) -> set[str]:
    return {n for n in SOMETIMES if controls._boxes[n].layout.display != "none"}


def degrees(controls: Controls) -> tuple[int, int, int]:
    return controls.plan.dp, controls.plan.pp, controls.plan.tp


# Every strategy runs at once.


@pytest.mark.parametrize("model", ["nano", "micro", "mini"])
def test_every_strategy_runs_at_once_after_every_other(model):
    controls = controls_of(model=model)
    for first, then in itertools.product(STRATEGIES, STRATEGIES):
        choose(controls, strategy=first)
        choose(controls, strategy=then)
        assert controls.reason is None
        assert controls.plan.strategy == then
        split = [n for n in degrees(controls) if n > 1]
        assert len(split) == len(STRATEGIES[then].axes), (first, then)


def test_every_strategy_runs_at_once_whatever_was_wished_before():
    controls = controls_of()
    choose(controls, strategy="dp+pp", devices=4, micro_batches=6, schedule="gpipe", zero=2)
    choose(controls, batch=12, strategy="tp", devices=2, sequence_parallel=True)
    choose(controls, strategy="ddp", devices=3, batch=9, micro_batches=3)
    for strategy in (*STRATEGIES, *reversed(STRATEGIES)):
        choose(controls, strategy=strategy)
        assert controls.reason is None, strategy


def test_a_strategy_moves_to_devices_that_split_all_its_axes_and_gives_them_back():
    controls = controls_of()
    choose(controls, strategy="3d")
    assert degrees(controls) == (2, 2, 2)
    assert controls.notice == "Adjusted to your choice: Devices 4 → 8."
    choose(controls, strategy="single")
    assert controls.plan.devices == 1
    assert "runs on one device" in button(controls, "devices", 4).tooltip
    choose(controls, strategy="zero3")
    assert (controls.plan.devices, controls.notice) == (4, "")
    # A person may want fewer all the same, and where there are no more, there are no more.
    choose(controls, strategy="3d", devices=4)
    assert degrees(controls) == (1, 2, 2)
    controls = controls_of(max_devices=4)
    choose(controls, strategy="3d")
    assert degrees(controls) == (1, 2, 2)


def test_a_sequence_gives_way_to_a_models_positions_and_comes_back():
    controls = controls_of()
    choose(controls, seq=2048)
    controls._menu.widget.value = "micro"
    assert (controls.plan.seq, controls.reason) == (1024, None)
    assert controls.notice == "Adjusted to your choice: Sequence 2,048 → 1,024."
    controls._menu.widget.value = "mini"
    assert (controls.plan.seq, controls.notice) == (2048, "")


def test_a_model_moves_to_devices_that_it_can_use():
    controls = controls_of()
    choose(controls, strategy="pp")
    assert degrees(controls) == (1, 4, 1)
    controls._menu.widget.value = "nano"
    assert (degrees(controls), controls.reason) == ((1, 2, 1), None)
    assert button(controls, "devices", 4).tooltip.startswith(
        "nano has 2 layers, fewer than the 4 stages"
    )
    controls._menu.widget.value = "mini"
    assert degrees(controls) == (1, 4, 1)


def test_a_model_leaves_the_devices_alone_where_it_can_use_them():
    controls = controls_of()
    choose(controls, devices=1)
    controls._menu.widget.value = "nano"
    assert controls.plan.devices == 1


# Degrees.


@pytest.mark.parametrize("strategy", ["dp+pp", "3d"])
@pytest.mark.parametrize("devices", [2, 4, 8, 16])
def test_devices_are_dealt_as_plan_deals_them(strategy, devices):
    controls = controls_of(max_devices=16)
    choose(controls, strategy=strategy, devices=devices)
    plan = Plan(strategy, devices)
    assert degrees(controls) == (plan.dp, plan.pp, plan.tp)


def test_devices_that_plan_has_no_deal_for_get_one():
    controls = controls_of()
    choose(controls, strategy="3d", devices=6)
    assert degrees(controls) == (1, 3, 2)
    assert controls.reason is None


def test_a_degree_changes_the_others_and_keeps_the_product():
    controls = controls_of()
    choose(controls, strategy="3d")
    for axis, degree, expected in (
        ("tp", 4, (1, 2, 4)), ("dp", 2, (2, 1, 4)), ("pp", 2, (2, 2, 2)), ("dp", 8, (8, 1, 1)),
        ("pp", 4, (2, 4, 1)), ("tp", 1, (2, 4, 1)), ("tp", 2, (1, 4, 2)),
    ):  # fmt: skip
        choose(controls, **{axis: degree})
        assert degrees(controls) == expected, (axis, degree)
        assert controls.reason is None


def test_degrees_are_divisors_and_those_that_cannot_work_say_why():
    controls = controls_of(model="nano")
    choose(controls, strategy="3d")
    assert controls._choices["tp"].options == [1, 2, 4, 8]
    assert not button(controls, "tp", 2).disabled
    assert button(controls, "tp", 4).disabled
    assert "does not divide by tp=4; tp may be 1, 2" in button(controls, "tp", 4).tooltip
    assert "nano has 2 layers, fewer than the 4 stages" in button(controls, "pp", 4).tooltip
    choose(controls, devices=6)
    assert controls._choices["tp"].options == [1, 2, 3, 6]


def test_the_label_of_devices_is_the_equation():
    controls = controls_of()
    for strategy, product in (
        ("single", ""), ("zero2", "= dp"), ("mp", "= pp"), ("3d", "= dp × pp × tp")
    ):  # fmt: skip
        choose(controls, strategy=strategy)
        title = controls._boxes["devices"].children[0].value
        assert title.replace(" <span>", "").startswith(f'<div class="pl-label">Devices{product}<')


# Only what matters is shown, and only that reaches the plan.


def test_only_what_matters_is_shown():
    controls = controls_of()
    expected = {
        "single": {"micro_batches"},
        "ddp": {"micro_batches"},
        "mp": set(),
        "pp": {"micro_batches", "schedule"},
        "tp": {"micro_batches", "sequence_parallel"},
        "dp+pp": {"dp", "pp", "micro_batches", "schedule", "zero"},
        "3d": set(SOMETIMES),
    }
    for strategy, names in expected.items():
        choose(controls, strategy=strategy)
        assert shown(controls) == names, strategy
    choose(controls, dp=1)
    assert shown(controls) == {*SOMETIMES} - {"zero"}
    choose(controls, pp=1, dp=8)
    assert shown(controls) == {"dp", "pp", "tp", "zero", "micro_batches"}


def test_what_is_hidden_does_not_reach_the_plan_and_comes_back():
    controls = controls_of()
    choose(controls, strategy="3d", schedule="gpipe", zero=3, sequence_parallel=True)
    plan = controls.plan
    assert (plan.schedule, plan.zero, plan.sequence_parallel) == ("gpipe", 3, True)
    choose(controls, strategy="ddp")
    assert controls.plan == Plan("ddp", 4, batch=8)
    choose(controls, strategy="tp")
    assert controls.plan == Plan("tp", 4, batch=8, sequence_parallel=True)
    choose(controls, strategy="3d")
    assert controls.plan == plan


# Micro-batches and batch.


def test_micro_batches_follow_the_strategy():
    controls = controls_of()
    for name, value, micro_batches in (
        ("strategy", "pp", 8), ("devices", 2, 4), ("strategy", "mp", 1), ("strategy", "dp+pp", 4),
        ("strategy", "tp", 1), ("strategy", "3d", 4), ("pp", 4, 8), ("pp", 1, 1),
    ):  # fmt: skip
        choose(controls, **{name: value})
        assert controls.plan.micro_batches == micro_batches
        if name != "strategy" or value != "mp":
            assert controls._numbers["micro_batches"].value == micro_batches


def test_micro_batches_set_by_hand_stay_in_pipelines_and_outside_each():
    controls = controls_of()
    choose(controls, strategy="pp", micro_batches=16, devices=2)
    assert controls.plan.micro_batches == 16
    choose(controls, strategy="ddp")
    assert (controls.plan.micro_batches, controls.plan.batch) == (1, 8)
    choose(controls, micro_batches=2, strategy="zero3")
    assert controls.plan.micro_batches == 2
    choose(controls, strategy="dp+pp")
    assert controls.plan.micro_batches == 16
    # Typing what is usual anyway takes the wish back.
    choose(controls, strategy="pp", micro_batches=4, devices=4)
    assert controls.plan.micro_batches == 8


def test_micro_batches_too_few_for_a_schedule_give_way_to_it():
    controls = controls_of()
    choose(controls, strategy="pp", schedule="gpipe", micro_batches=2)
    assert controls.plan.micro_batches == 2
    choose(controls, schedule="1f1b")
    assert controls.plan.micro_batches == 8
    assert controls.notice == "Adjusted to your choice: Micro-batches 2 → 8."
    choose(controls, schedule="gpipe")
    assert controls.plan.micro_batches == 2


def test_the_batch_gives_way_and_comes_back():
    controls = controls_of()
    for devices, batch, notice in (
        (3, 9, "Adjusted to your choice: Batch 8 → 9."), (6, 6, None), (4, 8, ""), (8, 8, "")
    ):  # fmt: skip
        choose(controls, devices=devices)
        assert (controls.plan.batch, controls._numbers["batch"].value) == (batch, batch)
        assert notice in (None, controls.notice)
    choose(controls, devices=4, strategy="pp", micro_batches=6)
    assert (controls.plan.batch, controls.reason) == (6, None)


def test_a_typed_batch_stands_and_is_refused_with_the_reason():
    controls = controls_of()
    choose(controls, batch=7)
    assert controls.reason == why_not(Model("mini"), strategy="ddp", devices=4, batch=7)
    assert not button(controls, "precision", "bf16").disabled
    choose(controls, strategy="zero2")
    assert (controls.plan.batch, controls.reason) == (8, None)
    choose(controls, strategy="single")
    assert controls.plan.batch == 7


# What cannot work.


def test_impossible_options_are_grey_with_plans_own_reason():
    controls = controls_of()
    choose(controls, strategy="tp")
    three = button(controls, "devices", 3)
    assert three.disabled
    assert three.tooltip == why_not(Model("mini"), strategy="tp", devices=3, batch=8)
    assert not button(controls, "devices", 2).disabled
    choose(controls, strategy="dp+pp", zero=2)
    assert "would train on wrong gradients" in button(controls, "schedule", "zb").tooltip
    choose(controls, zero=1, schedule="zb")
    assert button(controls, "zero", 3).disabled
    controls = controls_of(model="micro")
    choose(controls, strategy="pp")
    assert "fewer than the 8 stages of zbv on pp=4" in button(controls, "schedule", "zbv").tooltip


def test_no_strategy_is_offered_where_no_number_of_devices_would_do():
    controls = controls_of()
    choose(controls, seq=100_000)
    assert all(b.disabled for b in controls._choices["strategy"]._buttons.values())
    assert "longer than the 2048 tokens" in button(controls, "strategy", "single").tooltip


def test_a_schedule_gives_way_to_devices_and_comes_back():
    controls = controls_of(model="micro")
    choose(controls, strategy="pp", devices=2, schedule="zbv")
    choose(controls, devices=4)
    assert controls.plan.schedule == "1f1b"
    assert controls.notice == "Adjusted to your choice: Schedule zbv → 1f1b."
    choose(controls, devices=2)
    assert controls.plan.schedule == "zbv"


def test_models_that_do_not_fit_are_grey_and_say_by_how_much():
    controls = controls_of()  # the made-up machine has 8 GiB free
    names = [name for _, name in controls._menu.widget.options]
    assert names[:4] == ["nano", "micro", "mini", "small"]
    grey = controls._grey.value
    assert 0 < grey.count("color: #a8a8a8") < len(names)
    assert ":nth-child(1)" not in grey
    controls._menu.widget.value = "llama-3.1-8b"
    # 8.03 G parameters × 16 bytes on each of 4 ranks: 478.6 GiB; and the batch.
    assert "llama-3.1-8b with ddp needs at least 480.1 GiB" in controls.reason
    with pytest.raises(PlanError) as refused:
        check_fits(Model("llama-3.1-8b"), controls.plan, *FakeRunner().room())
    assert str(refused.value) == controls.reason
    # Sharded over the same ranks the floor falls to a quarter.
    choose(controls, strategy="zero3")
    assert "with zero3 needs at least 121.1 GiB" in controls.reason


def test_a_model_too_big_for_a_pipeline_is_refused_in_words():
    controls = controls_of()
    choose(controls, strategy="pp", devices=8)
    controls._menu.widget.value = "llama-3.1-405b"
    # 405.9 G parameters × 16 bytes, once: 6,047.8 GiB, and the batch.
    assert "llama-3.1-405b with pp needs at least 6,04" in controls.reason
    assert "on this machine; " in controls.reason


# Showing a plan.


@pytest.mark.parametrize("plan", [
    Plan("zero2", devices=2, batch=12, seq=64, micro_batches=3, precision="bf16",
         recompute="full", optimizer="sgd"),
    Plan("pp", 2, schedule="gpipe", micro_batches=3, batch=6),
    Plan("mp", 2, batch=3),
    Plan("tp", 2, sequence_parallel=True),
    Plan("3d", dp=1, pp=2, tp=4),
    Plan("3d", dp=4, pp=2, tp=1, zero=3, micro_batches=2),
    Plan("dp+pp", dp=5, pp=1, zero=0),
])  # fmt: skip
def test_showing_a_plan_sets_every_input(plan):
    controls = controls_of()
    mine = Model("mine", layers=4, hidden=32, heads=4, ffn=64, vocab=257)
    controls.show(mine, plan, 17)
    assert (controls.model, controls.plan, controls.steps) == (mine, plan, 17)
    assert (controls.reason, controls.notice) == (None, "")
    for name, choice in controls._choices.items():
        if name in controls._now:
            chosen = [v for v, b in choice._buttons.items() if "pl-chosen" in b._dom_classes]
            assert chosen == [getattr(plan, name)]


def test_showing_what_is_shown_already_keeps_the_wishes():
    controls = controls_of()
    choose(controls, strategy="3d")
    controls.show(controls.model, controls.plan, 10)
    choose(controls, strategy="ddp")
    assert controls.plan.devices == 4
    # Another plan is a wish of its own.
    controls.show(controls.model, Plan("3d", batch=16), 10)
    choose(controls, strategy="ddp")
    assert controls.plan == Plan("ddp", 8, batch=16)


def test_a_cluster_of_five_offers_five():
    assert controls_of(max_devices=5)._choices["devices"].options == [1, 2, 3, 4, 5]


# Proposals, without widgets.


def test_a_proposal_says_what_comes_nearest_and_why_it_fails():
    firm = {"strategy": "tp", "devices": 3, "seq": 128}
    choices, reason = propose(Model("mini"), {**firm, "batch": 8}, firm, [1, 2, 3])
    assert degrees_of(choices) == {"dp": 1, "pp": 1, "tp": 3}
    assert "does not divide by tp=3" in reason


@pytest.mark.bench
def test_a_refresh_takes_less_than_fifty_milliseconds():
    for max_devices, strategy in itertools.product((8, 64), STRATEGIES):
        controls = controls_of(max_devices)
        choose(controls, strategy=strategy)
        controls_module._needed_bytes.cache_clear()
        start = time.process_time()
        controls.refresh()
        assert time.process_time() - start < 0.05, (max_devices, strategy)
