"""What changed between two Reports, in the words that people read."""

from dataclasses import replace

import pytest

import parallab as pl
from parallab.compare.changes import amount, explain, milliseconds, pace, relative, sections, signed
from tests.compare.test_side_by_side import other
from tests.recorded import recorded
from tests.synthetic import fake_prediction, fake_report


def told(first, second):
    return {p.title: " ".join(p.sentences) for p in explain(first, second)}


def slower(report, seconds):
    """The same run with the untraced steps as long as given, one after the other."""
    changed = pl.Report.from_dict(report.to_dict())
    for rank in changed.ranks:
        for step, took in zip(rank.steps[2:], seconds, strict=True):
            step.seconds = took
    return changed


def test_the_plan_in_words():
    one = recorded(plan=pl.Plan("ddp", 2, batch=4, seq=64))
    two = recorded(plan=pl.Plan("zero3", 2, batch=4, seq=64, recompute="full"))
    words = told(one, two)["Plan"]
    assert words == (
        "Strategy ddp → zero3, ZeRO stage 0 → 3, recompute none → full. "
        "The rest of the plan is the same."
    )
    assert told(one, one)["Plan"].startswith("The plan is the same: ddp on 2 (dp=2")


def test_a_schedule_counts_in_pipelines_only():
    ddp, pp = (recorded(plan=pl.Plan(name, 2, batch=8, seq=64)) for name in ("ddp", "pp"))
    assert "schedule none → 1f1b" in told(ddp, pp)["Plan"]
    mp = recorded(plan=pl.Plan("mp", 2, batch=8, seq=64))
    assert "schedule" not in told(ddp, mp)["Plan"]


def test_the_model_in_words():
    words = told(recorded(), recorded(model="micro"))["Model"]
    assert words.startswith("nano (0.1 M parameters) → micro (1.0 M parameters): layers 2 → 4")


def test_where_figures_come_from():
    one = recorded()
    predicted = fake_prediction(one.model, one.plan)
    assert told(predicted, one)["Source"] == "A is predicted, B is measured."
    two = recorded()
    two.environment = {"torch": "2.14.0"}
    assert told(one, two)["Source"] == (
        "Both are measured. They did not run alike: torch 2.13.0 → 2.14.0."
    )


def test_memory_and_bytes_in_words():
    one = recorded()
    words = told(one, other(one))
    assert words["Memory"].startswith(
        "Rank 1 peaks at 1.00 MiB → 1.00 MiB: +1,000 bytes, +0.1 %. "
        "What changes most is workspace: 46.5 KiB → 47.5 KiB, +1,000 bytes."
    )
    assert words["Communication"] == (
        "In a step, the busiest rank's payload is 489 KiB → 978 KiB: +489 KiB, +100 %. "
        "On the wire, ideal rings need 489 KiB → 978 KiB: +489 KiB, +100 %. "
        "Payload by axis: all-gather on dp 489 KiB is new."
    )
    same = told(one, one)
    assert same["Memory"] == (
        "The same peak to the byte, 1.00 MiB on rank 1. Every category is the same, to the byte."
    )
    assert "is the same 489 KiB" in same["Communication"]


def test_another_plans_fullest_rank_is_named():
    one = recorded(plan=pl.Plan("ddp", 2, batch=4, seq=64))
    two = recorded(plan=pl.Plan("zero1", 2, batch=4, seq=64))
    for step in two.ranks[0].steps:
        step.memory = replace(step.memory, peak_bytes=2 * 2**20, at_peak={"workspace": 2 * 2**20})
    words = told(one, two)["Memory"]
    assert words.startswith("The fullest rank peaks at 1.00 MiB (rank 1) → 2.00 MiB (rank 0):")


def test_an_untraced_report_has_no_categories():
    one, two = recorded(), recorded()
    for rank in two.ranks:
        for step in rank.steps:
            step.memory = replace(step.memory, at_peak={}, peak_bytes=900_000)
    assert "Of B only the total is known: no step was traced." in told(one, two)["Memory"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ([0.20, 0.21, 0.22], "These overlap: the difference is within the noise."),
        ([0.40, 0.41, 0.42], "So few steps are a hint only: run ten or more to be sure."),
    ],
)
def test_time_is_held_against_its_spread(seconds, words):
    one = slower(recorded(), [0.20, 0.21, 0.22])
    found = told(one, slower(one, seconds))["Time"]
    assert words in found
    assert "The middle half of the timed steps: 205 ms to 215 ms of 3 →" in found
    assert "CPU engines say little" in found


def test_two_without_an_untraced_step_are_more_than_one():
    one = recorded(1)
    assert "A and B have no untraced step after the first" in told(one, one)["Time"]
    assert "B has no untraced step after the first" in told(recorded(), one)["Time"]


def test_many_steps_far_apart_are_a_difference():
    one = slower(recorded(8), [0.2] * 6)
    found = told(one, slower(one, [0.4] * 6))["Time"]
    assert found.startswith("A step takes 200 ms → 400 ms: +100 %.")
    assert "noise" not in found
    assert "hint" not in found


def test_what_never_ran_has_no_time():
    one = recorded()
    words = told(one, fake_prediction(one.model, one.plan))["Time"]
    assert (
        words
        == "B is predicted, and only steps that ran have taken time: there is none to compare."
    )
    assert pace(fake_prediction(one.model, one.plan)) is None


def test_idle_is_said_of_pipelines():
    ddp, pp = fake_report("ddp", steps=4), fake_report("pp", steps=4)
    assert "Idle" not in told(ddp, ddp)
    words = told(ddp, pp)["Idle"]
    assert words.startswith("A has no pipeline. B's pipeline ranks wait ")
    assert words.endswith(" % of their time, 27 % by the schedule.")


def test_what_changes_most_is_listed_first():
    ddp, zero = fake_report("ddp"), fake_report("zero3")
    memory, payload, wire, whole = sections([ddp, zero])
    assert memory.title == "Memory at the peak of rank 3"
    names = [row.name for row in memory.rows]
    assert names[:2] == ["peak", "optimizer"]
    assert [row.name for row in payload.rows] == [
        "sent in all", "all-gather on dp", "all-reduce on dp", "reduce-scatter on dp",
    ]  # fmt: skip
    assert payload.rows[0].values == (ddp.payload_bytes, zero.payload_bytes)
    assert wire.rows[0].values == (ddp.wire_bytes, zero.wire_bytes)
    assert whole.rows[0].name == "highest peak of any rank"


def test_figures():
    assert [amount(n) for n in (0, 1, 1023, 2048)] == ["0", "1 byte", "1,023 bytes", "2.00 KiB"]
    assert signed(-2048) == "−2.00 KiB"
    assert [relative(100, n) for n in (100, 99, 250, 1000)] == [
        "0 %",
        "−1.0 %",
        "+150 %",
        "10 times",
    ]
    assert [milliseconds(s) for s in (0.00123, 0.0123, 1.5)] == ["1.23 ms", "12.3 ms", "1,500 ms"]
