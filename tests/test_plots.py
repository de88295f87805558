"""Plots carry the Report's numbers, and say where they come from."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.legend import Legend
from PIL import Image

from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.plots import (
    History,
    LiveRunView,
    plot_communication,
    plot_loss,
    plot_memory,
    plot_report,
    plot_timeline,
    plot_traffic,
)
from parallab.plots.communication import stacked_bars
from parallab.plots.history import Curve, memory_curve, thinned
from parallab.plots.live import as_png, in_palette
from parallab.plots.memory import MAX_RANKS, outline, shown_ranks
from parallab.plots.style import (
    AXIS_HATCHES,
    CATEGORY_COLOURS,
    OPERATION_COLOURS,
    Unit,
    in_words,
    rank_title,
    unit_for,
)
from parallab.predict import predict
from parallab.progress import Gauge, Progress, Replay
from parallab.report import CATEGORIES, Memory, PhaseMemory, Report, Step
from tests.synthetic import FakeRun, fake_report

MIB = 2**20


def words_in(figure) -> str:
    texts = [t.get_text() for ax in figure.axes for t in ax.texts]
    labels = [f"{ax.get_xlabel()} {ax.get_ylabel()}" for ax in figure.axes]
    legends = [
        text.get_text()
        for legend in figure.findobj(Legend)
        for text in (legend.get_title(), *legend.texts)
    ]
    return "\n".join([*texts, *labels, *legends, *(t.get_text() for t in figure.texts)])


def near(picture, colour: str) -> int:
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return int((np.abs(picture.astype(int) - rgb).max(axis=2) <= 3).sum())


def picture_of(png: bytes):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


# Units and names.


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (0, "0"),
        (512, "0.50 KiB"),
        (2**20, "1.00 MiB"),
        (2**20 - 1, "1,024 KiB"),
        (13 * 2**20, "13.0 MiB"),
        (80 * 2**30, "80.0 GiB"),
        (3 * 2**40, "3.00 TiB"),
    ],
)
def test_amounts_in_words(amount, words):
    assert in_words(amount) == words


def test_the_unit_is_the_largest_that_leaves_one():
    assert [unit_for(v).name for v in (1, 2**20, 2**30 - 1, 2**30)] == ["KiB", "MiB", "MiB", "GiB"]


def test_rank_titles():
    assert rank_title(2, "cuda:2") == "GPU 2"
    assert rank_title(2, "cpu") == "rank 2 (cpu)"
    assert rank_title(2, "") == "rank 2"


def test_colours_tell_categories_and_operations_apart():
    assert len(set(CATEGORY_COLOURS.values())) == len(CATEGORY_COLOURS) == 9
    assert len(set(OPERATION_COLOURS.values())) == len(OPERATION_COLOURS) == 11


# The listening half.


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


# The figures.


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


# The live view.


def test_a_live_view_ends_with_the_picture_of_the_report():
    frames: list[bytes] = []
    run = FakeRun(Model("mini"), Plan("zero3", devices=8, batch=16), 7)
    history = History(run.model, run.plan, devices=["cpu"] * 8)
    view = LiveRunView(history, 7, frames.append, caption="measured")
    empty = picture_of(frames[-1])
    progress = run.poll()
    while not progress.finished:
        history.add(progress)
        view.draw(force=True)
        progress = run.poll()
    history.add(progress)
    view.draw(force=True)
    last = picture_of(frames[-1])
    # No layout jump: the picture keeps its size.
    assert last.shape == empty.shape
    for category in ("parameters", "optimizer", "activations", "gradients"):
        assert near(last, CATEGORY_COLOURS[category]) > 2 * near(empty, CATEGORY_COLOURS[category])
    assert near(last, OPERATION_COLOURS["all_gather"]) > 20_000


def test_the_frame_rate_is_capped():
    history = History(Model("nano"), Plan("ddp", devices=2))
    view = LiveRunView(history, 5, lambda png: None, caption="")
    before = view.frames
    drawn = [view.draw() for _ in range(200)]
    assert view.frames - before == sum(drawn) < 200


@pytest.mark.parametrize(
    "plan",
    [
        Plan("zero3", devices=8, batch=16),
        Plan("pp", devices=8, micro_batches=16, schedule="interleaved"),
    ],
    ids=["zero3", "pipeline"],
)
@pytest.mark.bench
def test_a_frame_of_eight_ranks_takes_little_of_a_core(plan):
    run = FakeRun(Model("mini", layers=16), plan, 30)
    history = History(run.model, run.plan, devices=["cpu"] * 8)
    view = LiveRunView(history, 30, lambda png: None, caption="")
    before, spent = view.frames, 0.0
    progress = run.poll()
    while not progress.finished:
        history.add(progress)
        start = time.thread_time()
        view.draw(force=True)
        spent += time.thread_time() - start
        progress = run.poll()
    # Processor time, which a busy machine does not stretch much: five frames need half a core.
    assert spent / (view.frames - before) < 0.1


def test_a_frame_that_is_new_in_parts_is_as_one_drawn_whole():
    run = FakeRun(Model("nano"), Plan("pp", devices=2), 4, polls_per_step=5)
    frames: list[bytes] = []
    view = LiveRunView(History(run.model, run.plan), 4, frames.append, caption="")
    for _ in range(8):
        view.add(run.poll())
        view._live._due = 0
        view.draw()
    before = len(frames)
    view.add(run.poll())
    view._live._due = 0
    assert view.draw()
    view.draw(force=True)
    assert len(frames) == before + 2
    moved = picture_of(frames[-2])
    assert (moved != picture_of(frames[-3])).any()
    assert (moved == picture_of(frames[-1])).all()


def test_threads_may_draw_at_the_same_time():
    run = FakeRun(Model("nano"), Plan("ddp", devices=2), 30, polls_per_step=1)
    history = History(run.model, run.plan)
    errors: list[BaseException] = []
    view = LiveRunView(history, 30, lambda png: None, caption="")

    def switch():
        try:
            for quantity in ("payload_bytes", "wire_bytes") * 5:
                view.show_quantity(quantity)
        except BaseException as error:
            errors.append(error)

    other = threading.Thread(target=switch)
    other.start()
    for _ in range(10):
        view.add(run.poll())
        view.draw(force=True)
    other.join()
    assert errors == []


def test_the_palette_keeps_every_colour_and_white():
    colours = [*CATEGORY_COLOURS.values(), *OPERATION_COLOURS.values(), "#FFFFFF", "#EFEFEF"]
    rows = [[int(c[i : i + 2], 16) for i in (1, 3, 5)] + [255] for c in colours]
    rgba = np.repeat(np.array([rows], dtype=np.uint8), 4, axis=0)
    assert np.abs(picture_of(as_png(in_palette(rgba))).astype(int) - rgba[:, :, :3]).max() <= 4


def test_plots_need_neither_torch_nor_widgets_nor_pyplot():
    names = "torch IPython ipyparallel ipywidgets matplotlib.pyplot"
    code = (
        "import sys, parallab.plots; "
        f"print([name for name in {names.split()} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
