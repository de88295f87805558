"""Plots carry the Report's numbers, and say where they come from."""

from __future__ import annotations

import subprocess
import sys

import pytest
from matplotlib.collections import PolyCollection

from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.plots import (
    plot_communication,
    plot_loss,
    plot_memory,
    plot_report,
    plot_timeline,
    plot_traffic,
)
from parallab.plots.communication import stacked_bars
from parallab.plots.memory import MAX_RANKS, outline, shown_ranks
from parallab.plots.style import AXIS_HATCHES, Unit
from parallab.predict import predict
from parallab.report import CATEGORIES, Report
from tests.plots.look import picture_of, words_in
from tests.synthetic import fake_report

MIB = 2**20


def test_every_figure_says_its_source():
    report = fake_report("zero3", devices=4)
    report.source = "simulated"
    for plot in (
        plot_report, plot_memory, plot_timeline, plot_communication, plot_traffic, plot_loss
    ):  # fmt: skip
        assert "simulated · mini · zero3 on 4" in words_in(plot(report))


def test_of_a_large_world_each_kind_of_rank_is_called_by_its_number():
    report = predict(Model("micro"), Plan("pp", pp=4))
    report.ranks = [report.ranks[0], report.ranks[3]]
    found = words_in(plot_memory(report))
    assert "rank 0" in found
    assert "rank 3" in found
    assert "rank 1" not in found


def test_a_model_may_have_any_name():
    report = fake_report("zero3", devices=4)
    report.model = Model(
        "a $x_{$ b",
        **{
            k: v
            for k, v in report.model.to_dict().items()
            if k in ("layers", "hidden", "heads", "ffn", "vocab")
        },
    )
    assert report.plot()._repr_png_()


def test_memory_areas_reach_what_the_report_says():
    report = fake_report("ddp", devices=2, steps=2)
    (ax,) = plot_memory(report).axes
    # The first is for a prediction.
    areas = [c for c in ax.collections if isinstance(c, PolyCollection)][1 : 1 + len(CATEGORIES)]
    memory = report.ranks[1].steps[1].memory
    highest = max(
        path.vertices[:, 1].max()
        for area in areas
        for path in area.get_paths()
        if len(path.vertices)
    )
    assert highest * MIB == pytest.approx(memory.peak_bytes)
    parameters = areas[0].get_paths()[-1].vertices[:, 1].max()
    assert parameters * MIB == memory.series["parameters"][0]


def test_untraced_steps_are_outlines_of_their_peaks():
    assert outline([3.0, 5.0]).tolist() == [[0, 0], [0, 3], [0.5, 3], [0.5, 5], [1, 5], [1, 0]]
    report = fake_report("ddp", devices=2, steps=5)
    (ax,) = plot_memory(report).axes
    outlines = ax.collections[2 + len(CATEGORIES)]
    assert len(outlines.get_paths()) == 2
    peak = report.ranks[0].steps[4].memory.peak_bytes
    assert outlines.get_paths()[0].vertices[:, 1].max() * MIB == pytest.approx(peak)


def test_ranks_are_named_by_their_device():
    assert "GPU 3" in words_in(plot_memory(fake_report(device="cuda")))
    words = words_in(plot_memory(fake_report(device="cpu")))
    assert "rank 3 (cpu)" in words
    assert "GPU" not in words


def test_units_are_binary_and_never_mixed():
    words = words_in(plot_report(fake_report("ddp", devices=2, model="base", steps=2)))
    assert "GiB" in words
    assert "GB" not in words


def test_many_ranks_are_thinned_to_the_first_and_the_highest():
    report = fake_report("ddp", devices=32, steps=2, model="nano")
    report.ranks[20].steps[1].memory.peak_bytes *= 3
    ranks = shown_ranks(report)
    assert ranks == [*range(MAX_RANKS - 1), 20]
    assert "(16 of 32 shown)" in words_in(plot_memory(report))


def test_bars_lie_upon_each_other():
    rows = [{("all_gather", "dp"): 2.0, ("reduce_scatter", "dp"): 1.0}, {("all_gather", "dp"): 4.0}]
    keys = [("all_gather", "dp"), ("reduce_scatter", "dp")]
    bars = stacked_bars(rows, keys, 7, Unit("KiB", 2))
    assert [[y for _, y in bar] for bar in bars["all_gather", "dp"]] == [[0, 1, 1, 0], [0, 2, 2, 0]]
    assert [y for _, y in bars["reduce_scatter", "dp"][0]] == [1, 1.5, 1.5, 1]
    assert bars["reduce_scatter", "dp"][0][0][0] == pytest.approx(6.62)


@pytest.mark.parametrize("quantity", ["payload_bytes", "wire_bytes"])
def test_communication_shows_the_bytes_of_the_busiest_rank(quantity):
    report = fake_report("zero3", devices=4)
    (ax,) = plot_communication(report, quantity).axes
    tops = [path.vertices[:, 1].max() for bars in ax.collections for path in bars.get_paths()]
    assert max(tops) * MIB == pytest.approx(getattr(report, quantity))
    assert ("payload" in words_in(ax.figure)) == (quantity == "payload_bytes")


def test_operations_are_named_and_axes_hatched():
    report = fake_report("zero3", devices=4)
    for rank in report.ranks:
        for step in rank.steps:
            step.communication[0].axis = "tp"
    figure = plot_communication(report)
    assert {"all-gather", "reduce-scatter", "dp", "tp"} <= set(words_in(figure).split("\n"))
    (ax,) = figure.axes
    assert {bars.get_hatch() for bars in ax.collections} == {None, AXIS_HATCHES["tp"]}


def test_a_single_device_sends_nothing():
    assert "Nothing is sent." in words_in(plot_communication(fake_report("single", devices=1)))


def test_the_loss_curve_is_the_loss():
    report = fake_report("ddp", devices=2, steps=9)
    (line,) = plot_loss(report).axes[0].lines
    assert line.get_ydata().tolist() == pytest.approx(report.losses)


def test_a_report_without_steps_can_be_plotted():
    report = fake_report("ddp", devices=2)
    for rank in report.ranks:
        rank.steps.clear()
    assert plot_report(report)._repr_png_()[0].startswith(b"\x89PNG")


def test_a_notebook_is_told_the_size_in_page_pixels():
    png, size = plot_loss(fake_report())._repr_png_()
    assert picture_of(png).shape[1] == 1.5 * size["width"]


def test_report_plot_is_plot_report():
    assert "zero3" in words_in(Report.from_dict(fake_report().to_dict()).plot())


def test_plots_need_neither_torch_nor_widgets_nor_pyplot():
    names = "torch IPython ipyparallel ipywidgets matplotlib.pyplot"
    code = (
        "import sys, parallab.plots; "
        f"print([name for name in {names.split()} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
