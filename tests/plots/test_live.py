"""The live view: many frames a second, and the last one is the Report's picture."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.plots import History, LiveRunView
from parallab.plots.live import as_png, in_palette
from parallab.plots.style import CATEGORY_COLOURS, OPERATION_COLOURS
from tests.plots.look import near, picture_of
from tests.synthetic import FakeRun


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
