"""Many plans as one table: what differs, what it costs, and where the numbers come from."""

from __future__ import annotations

import pytest

from parallab.advise import advise
from parallab.errors import PlanError
from parallab.hardware import Hardware
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.predict import predict
from parallab.sweep import ranking, sent_by_axis, summary, sweep
from parallab.tables import Table
from tests.synthetic import fake_report

MICRO = Model("micro")
TWO = Plan("dp+pp", dp=2, pp=2, batch=16)


def test_every_combination_in_the_order_that_was_asked_for():
    plans = [r.plan for r in sweep(MICRO, TWO, zero=(1, 3), micro_batches=(4, 8))]
    assert [(p.zero, p.micro_batches) for p in plans] == [(1, 4), (1, 8), (3, 4), (3, 8)]
    assert {(p.dp, p.pp, p.batch) for p in plans} == {(2, 2, 16)}


def test_degrees_follow_from_devices_and_devices_from_degrees():
    plan = Plan("3d", devices=8, batch=64)
    assert [r.plan.devices for r in sweep(MICRO, plan, tp=(1, 2))] == [4, 8]
    found = [r.plan for r in sweep(MICRO, plan, devices=(8,), dp=(2,), tp=(1, 2, 4))]
    assert [(p.dp, p.pp, p.tp) for p in found] == [(2, 4, 1), (2, 2, 2), (2, 1, 4)]


def test_micro_batches_follow_from_the_size_of_one():
    found = [r.plan for r in sweep(MICRO, TWO, batch=(16, 64), micro_batch=(1, 2))]
    assert [p.micro_batches for p in found] == [8, 4, 32, 16]
    assert [p.micro_batch for p in found] == [1, 2, 1, 2]
    with pytest.raises(PlanError, match="batch of 16 does not divide into micro-batches of 3"):
        sweep(MICRO, TWO, micro_batch=(3,))


def test_a_field_that_no_plan_has_is_named():
    with pytest.raises(PlanError, match="A plan has no layers; its fields are strategy, devices"):
        sweep(MICRO, TWO, layers=(2,))


def test_a_summary_shows_what_differs_and_what_it_costs():
    table = summary(sweep(MICRO, TWO, zero=(1, 3)))
    assert table.head == ("zero", "peak, MiB", "sent on dp, MiB", "sent on pp, MiB", "bubble")
    # ZeRO-1: one reduce-scatter and one all-gather of the stage's 2 MiB, halved by the ring. ZeRO-3
    # gathers for each of 4 forward passes and for the backward passes.
    assert [row[2] for row in table.rows] == ["2.00", "6.01"]
    # 4 micro-batches of 2 sequences, 128 tokens, 128 numbers, 4 bytes.
    assert {row[3] for row in table.rows} == {"0.50"}
    assert {row[4] for row in table.rows} == {"20 %"}
    assert table.caption == "micro (1.0 M parameters): predicted, per step"
    assert table.left == 1


def test_sources_are_told_apart_and_times_are_measured_or_estimated():
    plan = Plan("ddp", devices=4, batch=8)
    measured = fake_report("ddp", model="nano", batch=8)
    both = summary([predict(Model("nano"), plan), measured])
    assert both.head[0] == ""
    assert [row[0] for row in both.rows] == ["predicted", "measured"]
    assert both.head[-1] == "step, ms"
    assert both.rows[0][-1] == "–"
    estimated = summary([predict(Model("nano"), plan)], Hardware("h100"))
    assert estimated.head[-2:] == ("step, estimated s", "tokens/s each, estimated")
    assert estimated.caption.endswith("times estimated for nodes of 8 × H100 SXM 80 GB")


def test_bytes_of_an_axis_are_those_of_the_rank_that_sends_most():
    # The middle of a pipeline sends both ways, its ends one.
    ends = sent_by_axis(predict(MICRO, Plan("pp", pp=2, batch=16, micro_batches=8)))
    middle = sent_by_axis(predict(MICRO, Plan("pp", pp=4, batch=16, micro_batches=8)))
    assert middle["pp"] == 2 * ends["pp"] == 2 * 2**20


def test_a_ranking_puts_need_beside_peak_and_one_order_beside_the_other():
    advice = advise("micro", devices=4, free_bytes=48 * 2**20, headroom=0, batch=16)
    chosen = [advice.kind("pipeline"), advice.kind("ZeRO-1")]
    proposed = ranking(chosen)
    assert proposed.head == ("plan", "why", "need, predicted, MiB", "step, estimated ms")
    reports = [
        fake_report("pp", pp=4, model="micro", batch=16),
        fake_report("zero1", model="micro", batch=16),
    ]
    for report, seconds in zip(reports, (0.5, 0.25), strict=True):
        for rank in report.ranks:
            for step in rank.steps:
                step.seconds = seconds
    table = ranking(chosen, reports)
    assert [row[-2:] for row in table.rows] == [("500", "2 → 2"), ("250", "1 → 1")]
    with pytest.raises(ValueError, match="There is no option to show"):
        ranking([])
    with pytest.raises(ValueError, match="one measured Report for each option"):
        ranking(chosen, reports[:1])
    with pytest.raises(ValueError, match="No plan of 'magic' is here; there are"):
        advice.kind("magic")


def test_a_table_in_a_terminal_and_in_a_notebook():
    table = Table(("axis", "sent"), (("dp", "8.00"), ("<pp>", "0.25")), "In MiB")
    assert str(table) == "In MiB\naxis  sent\ndp    8.00\n<pp>  0.25"
    page = table._repr_html_()
    assert page.count("<tr>") == 3
    assert "&lt;pp&gt;" in page
    assert "color" not in page  # the page's own, light or dark
