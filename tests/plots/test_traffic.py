"""The traffic matrix shows who sends what to whom, by mesh axis."""

import pytest

from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.plots import History, plot_communication, plot_traffic
from parallab.plots.communication import by_axis
from parallab.plots.style import AXIS_COLOURS, GREY, ReportFigure, small_number, tint
from parallab.plots.traffic import TrafficPlot, axis_between, strength
from parallab.predict.communication import payload_per_step, wire_bytes
from parallab.report import Memory, Rank, Report, Step
from tests.plots.look import words_in
from tests.synthetic import fake_report

MIB = 2**20


def report_of(plan: Plan, traffic: dict[int, dict[int, int]]) -> Report:
    ranks = [
        Rank(r, {}, "cpu", "", [Step(0, None, 1.0, False, Memory(0), traffic=traffic.get(r, {}))])
        for r in range(plan.devices)
    ]
    return Report("measured", Model("nano"), plan, {}, ranks)


def traffic_plot(report: Report) -> TrafficPlot:
    figure = ReportFigure(4, 3)
    plot = TrafficPlot(figure, figure.add_gridspec(1, 1)[0], report.plan)
    plot.update(History.of(report))
    return plot


def cells(plot: TrafficPlot) -> list[tuple[float, float]]:
    """(sender, receiver) of each cell."""
    middles = [path.vertices[:4].mean(axis=0) for path in plot._cells.get_paths()]
    return [(y, x) for x, y in middles]


def test_the_axis_is_the_coordinate_that_differs():
    plan = Plan("3d", devices=8)
    assert [axis_between(plan, 0, other) for other in range(1, 8)] == [
        "tp", "dp", "world", "pp", "world", "world", "world"
    ]  # fmt: skip


def test_a_halving_is_a_fifth_paler():
    sizes = (1024, 513, 512, 256, 128, 64, 1)
    assert [round(strength(size, 1024), 1) for size in sizes] == [1, 1, 0.8, 0.6, 0.4, 0.2, 0.2]


def test_a_cell_for_each_pair_from_row_to_column():
    plan = Plan("3d", devices=8)
    plot = traffic_plot(report_of(plan, {0: {1: 8 * MIB, 2: 4 * MIB}, 4: {0: MIB, 3: 2 * MIB}}))
    assert cells(plot) == [(0, 1), (0, 2), (4, 0), (4, 3)]
    assert [tuple(c[:3]) for c in plot._cells.get_facecolor()] == [
        tint(AXIS_COLOURS["tp"], 1.0),
        pytest.approx(tint(AXIS_COLOURS["dp"], 0.8)),
        pytest.approx(tint(AXIS_COLOURS["pp"], 0.4)),
        pytest.approx(tint(GREY, 0.6)),
    ]
    shown = [(label.words, label.y, label.x) for label in plot._numbers.shown]
    assert shown == [("8.00", 0, 1), ("4.00", 0, 2), ("1.00", 4, 0), ("2.00", 4, 3)]
    assert "Traffic, MiB" in words_in(plot._ax.figure)


def test_small_amounts_beside_large_ones():
    assert [small_number(v) for v in (0.001, 0.0151, 12.34)] == ["<.01", "0.02", "12.3"]
    plan = Plan("ddp", devices=2)
    plot = traffic_plot(report_of(plan, {0: {1: 40 * MIB}, 1: {0: 2_000}}))
    assert [label.words for label in plot._numbers.shown] == ["40.0", "<.01"]


def test_many_ranks_have_no_numbers_but_a_scale():
    report = fake_report("ddp", 32, 3, model="nano")
    plot = traffic_plot(report)
    assert len(cells(plot)) == 32
    assert plot._numbers.shown == []
    words = words_in(plot._ax.figure)
    largest = max(report.ranks[0].steps[2].traffic.values()) / 1024
    assert f"to rank; strongest {largest:.0f} KiB, each paler ½" in words


def test_a_single_device_sends_nothing():
    assert "Nothing is sent." in words_in(plot_traffic(fake_report("single", 1, 3)))


def test_only_axes_that_there_are_have_a_colour_in_the_legend():
    words = words_in(plot_traffic(fake_report("dp+pp", 4, 3)))
    assert "\ndp\npp\n" in words
    assert "tp" not in words.split()


def test_a_new_step_changes_the_background_only_with_its_unit():
    report = fake_report("ddp", 2, 4)
    history = History.of(report)
    figure = ReportFigure(4, 3)
    plot = TrafficPlot(figure, figure.add_gridspec(1, 1)[0], report.plan)
    assert plot.update(history)
    assert not plot.update(history)
    history._add_step([Step(4, None, 1.0, False, Memory(0), traffic={1: 2048}), step_without_any()])
    assert plot.update(history)


def step_without_any() -> Step:
    return Step(4, None, 1.0, False, Memory(0))


def test_made_up_traffic_adds_up_to_the_wire_bytes():
    report = fake_report("3d", 8, 3, zero=1)
    plan, model = report.plan, report.model
    for rank in report.ranks:
        coords = plan.coordinates(rank.rank)
        wire = [
            wire_bytes(op, payload, getattr(plan, axis))
            for (op, axis), payload in payload_per_step(model, plan, coords).items()
        ]
        assert sum(rank.steps[2].traffic.values()) == sum(wire) > 0


# Communication by axis, beside it.


def test_bytes_by_axis():
    row = {("send", "pp"): 2.0, ("all_reduce", "tp"): 5.0, ("all_gather", "dp"): 1.0,
           ("reduce_scatter", "dp"): 3.0}  # fmt: skip
    assert list(by_axis(row).items()) == [("dp", 4.0), ("pp", 2.0), ("tp", 5.0)]


def test_the_busiest_ranks_bytes_are_named_for_each_axis():
    report = fake_report("3d", 8, 3, zero=1)
    sums = by_axis({k: v["wire_bytes"] for k, v in report.communication().items()})
    words = words_in(plot_communication(report))
    assert list(sums) == ["dp", "pp", "tp"]
    amounts = ", ".join(f"{axis} {small_number(size / MIB)}" for axis, size in sums.items())
    assert f"busiest rank: {amounts} MiB" in words
    assert "all-gather\n" in words
