"""What a run reports, as arrays: the listening half of the live view."""

from __future__ import annotations

import numpy as np

from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.plots import History
from parallab.plots.history import Curve, memory_curve, thinned
from parallab.progress import Gauge, Progress, Replay
from parallab.report import CATEGORIES, Memory, PhaseMemory, Step
from tests.synthetic import fake_report


def step_of(memory: Memory, seconds: float | None = 1.0) -> Step:
    return Step(0, None, seconds, bool(memory.series), memory)


def test_a_curve_over_time():
    series = {"seconds": [0.0, 0.5], "parameters": [4, 4], "activations": [0, 6]}
    curve = memory_curve(
        step_of(Memory(10, {"parameters": 4, "activations": 6}, series=series)), 99
    )
    assert curve.x.tolist() == [0, 0.5]
    assert curve.held_bytes[0].tolist() == [4, 4]
    assert curve.held_bytes[CATEGORIES.index("activations")].tolist() == [0, 6]
    assert curve.held_bytes[CATEGORIES.index("workspace")].tolist() == [0, 0]


def test_a_curve_by_phase_where_there_is_no_series():
    phases = [
        PhaseMemory("optimizer", 5, {"optimizer": 5}),
        PhaseMemory("forward", 3, {"buffers": 3}),
    ]
    curve = memory_curve(step_of(Memory(5, {"optimizer": 5}, phases=phases)), 99)
    assert curve.x.tolist() == [0, 0.5]
    assert curve.held_bytes[CATEGORIES.index("buffers")].tolist() == [3, 0]
    assert curve.held_bytes[CATEGORIES.index("optimizer")].tolist() == [0, 5]


def test_a_curve_where_only_the_peak_is_known_by_category():
    curve = memory_curve(step_of(Memory(5, {"optimizer": 5})), 99)
    assert curve.held_bytes.sum() == 5


def test_an_untraced_step_has_no_curve():
    assert memory_curve(step_of(Memory(5)), 99) is None


def test_areas_lie_upon_each_other_as_stairs():
    held = np.zeros((9, 2))
    held[0], held[1] = [4, 4], [0, 6]
    lowest, second, *_ = Curve(np.array([0, 0.5]), held).stacked
    assert lowest.tolist() == [
        [0, 4], [0.5, 4], [0.5, 4], [1, 4], [1, 0], [0.5, 0], [0.5, 0], [0, 0]
    ]  # fmt: skip
    assert second.tolist() == [
        [0, 4], [0.5, 4], [0.5, 10], [1, 10], [1, 4], [0.5, 4], [0.5, 4], [0, 4]
    ]  # fmt: skip


def test_thinning_keeps_ends_and_peak():
    values = np.zeros(1000)
    values[337] = 9
    kept = thinned(values, 50)
    assert len(kept) <= 52
    assert {0, 337, 999} <= set(kept.tolist())
    assert thinned(values[:10], 50).tolist() == list(range(10))


def test_history_of_a_run_is_its_report():
    report = fake_report("zero3", devices=4, steps=8)
    history = History.of(report)
    assert history.report.payload_bytes == report.payload_bytes
    assert history.report.step_seconds == report.step_seconds
    assert history.losses == report.losses
    assert [slot.step for slot in history.slots] == [0, 1, 6]
    assert [len(slot.later_peaks) for slot in history.slots] == [0, 4, 1]
    peaks = [max(s.memory.peak_bytes for s in rank.steps) for rank in report.ranks]
    assert history.peaks_bytes.tolist() == peaks


def test_history_takes_in_a_replay_step_by_step():
    report = fake_report("ddp", devices=2, steps=7)
    replay, history = Replay(report), History(report.model, report.plan, devices=["cpu", "cpu"])
    polls = 0
    while history.report.steps < 7:
        history.add(replay.poll())
        polls += 1
        assert history.report.steps == polls
    assert history.communication == History.of(report).communication


def test_steps_before_the_first_traced_one_are_outlines_only():
    report = fake_report("ddp", devices=2, steps=6)
    for rank in report.ranks:
        del rank.steps[:2]
    (slot,) = History.of(report).slots
    assert slot.step is None
    assert len(slot.later_peaks) == 4


def test_gauges_end_with_the_run():
    model, plan = Model("nano"), Plan("ddp", devices=2)
    history = History(model, plan)
    history.add(Progress("running", gauges=[Gauge(0, 0, "forward", 7), Gauge(5, 0, "forward", 7)]))
    assert [gauge.bytes for gauge in history.gauges] == [7]
    history.add(Progress("done"))
    assert history.gauges == []
