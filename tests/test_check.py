"""Exercises: every solution is green, whatever else is red, and nothing hangs or raises."""

from __future__ import annotations

import math
import time

import psutil
import pytest
import torch

import parallab as pl
from parallab.check import functions
from parallab.check.exercise import UNFILLED, Exercise, Verdict
from parallab.check.registry import exercises
from parallab.errors import RankError
from parallab.panels.engines import Engines, at_hand

NAMES = list(exercises())
FUNCTIONS = ["all-reduce", "zero-share", "bubble-formula", "row-split"]


@pytest.fixture(scope="module")
def at_work(engines):
    """The session's engines as the ones that the kernel has."""
    yield (runner := Engines(engines))
    runner.users = 0


@pytest.mark.engines
@pytest.mark.parametrize("name", NAMES)
def test_a_solution_is_green(at_work, name):
    verdict = pl.check(name, pl.check.solution(name))
    assert verdict.passed, verdict
    assert str(verdict).startswith("Right. ")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_filled_in_is_red(name):
    assert pl.check(name, ...) == Verdict(False, UNFILLED)
    assert pl.check(name) == Verdict(False, UNFILLED)


class Hostile:
    """What a class of a learner's own may do when it is shown."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __repr__(self) -> str:
        raise self.error


class UnsaidError(Exception):
    def __str__(self) -> str:
        raise self


WRONG = (
    None, math.nan, -math.inf, -1, 10**400, -(10**400), "", "no", b"x", [], {}, object(), print,
    int, lambda: 1, Hostile(SystemExit(3)), Hostile(UnsaidError()),
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_what_no_answer_can_be_is_red_in_a_sentence(name):
    for answer in WRONG:
        verdict = pl.check(name, answer)
        assert not verdict.passed
        assert verdict.words.endswith("."), verdict
        assert "Traceback" not in verdict.words


@pytest.mark.engines
def test_a_tensor_of_one_number_is_a_number(at_work):
    assert pl.check("tp-all-reduces", torch.tensor(20)).passed
    assert "not tensor([20," in pl.check("tp-all-reduces", torch.tensor([20, 4])).words


def test_a_rank_as_text_is_told_from_a_wrong_one():
    verdict = pl.check("rank-six", {"dp": 4, "pp": 2, "tp": "7"})
    assert "A rank is a whole number, and for tp you say '7'." in verdict.words


@pytest.mark.engines
@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("bytes-per-parameter", 12, "One of four is missing"),
        ("bytes-per-parameter", 4, "That is the weight alone."),
        ("ddp-payload-bytes", 1_049_728, "the number of gradients, not of bytes"),
        ("ddp-payload-bytes", 3, "less than a tenth"),
        ("zero1-optimizer-bytes", 8 * 1_049_728 + 152, "what every rank of ddp holds"),
        ("zero3-largest", "Optimizer", "Something else is larger."),
        ("waiting-micro-batches", 8, "That is gpipe"),
        ("tp-all-reduces", 16, "Those are the layers' own."),
        ("fits-in-45", pl.Plan("ddp", batch=8), "above 45 MiB"),
        ("fits-in-45", pl.Plan("ddp", devices=8, batch=8), "8 devices are more than the 4"),
        ("fits-in-45", pl.Plan("zero3", batch=4), "keep batch=8"),
        ("no-more-bytes", pl.Plan("zero3", batch=8, seq=64), "a rank sent 41.7 MiB"),
        ("small-bubble", pl.Plan("pp", pp=4, batch=32, seq=64), "idle 27.3 % of the time"),
        ("fewer-activations", pl.Plan("tp", batch=8, seq=64), "are 100 % of those of plain"),
    ],
)
def test_a_wrong_answer_is_red_and_says_what_was_measured(at_work, name, answer, words):
    verdict = pl.check(name, answer)
    assert not verdict.passed
    assert words.casefold() in verdict.words.casefold()


def dots(x):
    """What a learner finds in the cell."""
    ...  # noqa: PIE790


def dots_after_return(x):
    return ...


def one_all_reduce(x):
    dist.all_reduce(x)  # noqa: F821
    return x


def forgets_to_return(x):
    dist.all_reduce(x)  # noqa: F821


def another_name(x):
    return y  # noqa: F821


def raises_on_one_rank(x):
    if dist.get_rank() == 2:  # noqa: F821
        raise ValueError("not\nhere")
    dist.all_reduce(x)  # noqa: F821
    return x


def dies(x):
    import os

    os._exit(3)


def returns_too_much(x):
    return torch.zeros(200_000)


def writes_anywhere(x):
    import contextlib
    import os

    for file in range(3, 30):
        with contextlib.suppress(OSError):
            os.write(file, b"hello\n")


def too_many_arguments(x, y):
    return x


async def waits(x):
    return x


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (dots, UNFILLED),
        (dots_after_return, UNFILLED),
        (one_all_reduce, "The sums are right, but rank 0 was seen to call 1 all-reduce"),
        (forgets_to_return, "Rank 0 returned nothing"),
        (another_name, "NameError: name 'y' is not defined"),
        (raises_on_one_rank, "On rank 2 your function failed: ValueError: not here."),
        (dies, "its process died"),
        (returns_too_much, "it returned 200,000 numbers"),
        (writes_anywhere, "Your function wrote over what its ranks had to say"),
        (too_many_arguments, "missing 1 required positional argument"),
        (waits, "not async def"),
        (lambda x: x, "A lambda has no text of its own"),
        (len, "The answer is a function, not <built-in function len>"),
    ],
)
def test_a_wrong_function_is_red_and_says_why(function, words):
    verdict = pl.check("all-reduce", function)
    assert not verdict.passed
    assert words in verdict.words


def never_returns(x):
    while True:
        pass


def leaves_the_others_waiting(x):
    if dist.get_rank():  # noqa: F821
        dist.all_reduce(x)  # noqa: F821
    return x


@pytest.mark.parametrize("function", [never_returns, leaves_the_others_waiting])
def test_a_function_has_a_deadline(function):
    functions.on_ranks(one_all_reduce, [[[1.0]], [[2.0]]])  # the host is warm
    began = time.monotonic()
    with pytest.raises(RankError, match="was not back after 1 s, and was ended"):
        functions.on_ranks(function, [[[1.0]], [[2.0]]], seconds=1)
    assert time.monotonic() - began < 10


def test_the_ranks_of_a_function_are_counted_and_gone_afterwards():
    first, second = functions.on_ranks(one_all_reduce, [[[1.0, 2.0]], [[10.0, 20.0]]])
    assert first.value == second.value == [11.0, 22.0]
    assert first.operations == {"all_reduce": {"count": 1, "payload_bytes": 16}}
    (host,) = functions._hosts
    assert psutil.Process(host.pid).children() == []


def test_so_large_a_number_is_said_to_be_too_large():
    assert "So large a number cannot be" in pl.check("bytes-per-parameter", 10**400).words


def test_a_host_that_is_gone_is_started_again():
    functions.on_ranks(one_all_reduce, [[[1.0]]])
    functions._hosts[0].kill()
    functions._hosts[0].wait()
    assert functions.on_ranks(one_all_reduce, [[[1.0]]])[0].value == [1.0]
    functions.dismiss()
    assert functions._hosts == []


def test_an_unknown_name_is_a_sentence_with_those_near_it():
    verdict = pl.check("zero1-optimiser-byte", 3)
    assert not verdict.passed
    assert verdict.words.startswith(
        "There is no exercise called 'zero1-optimiser-byte'. Near it are: zero1-optimizer-bytes"
    )
    assert "The name of an exercise is a text. There are: bytes-" in pl.check(3, 3).words
    with pytest.raises(ValueError, match="Near it are: all-reduce"):
        pl.check.question("all-reduse")


def test_questions_and_verdicts_need_no_script_and_no_colour():
    for exercise in exercises().values():
        assert isinstance(exercise, Exercise)
        page = exercise._repr_html_() + pl.check(exercise.name)._repr_html_()
        assert "<script" not in page
        assert "Not yet." in page
    odd = Verdict(False, "<b>5 & 6</b>")
    assert "&lt;b&gt;5 &amp; 6&lt;/b&gt;" in odd._repr_html_()
    assert repr(odd) == "Not yet. <b>5 & 6</b>"
    assert pl.check.hint("tp-all-reduces") in exercises()["tp-all-reduces"]._repr_html_()


def test_every_function_exercise_is_tried_here():
    solved = [name for name in NAMES if callable(pl.check.solution(name))]
    assert set(FUNCTIONS) <= set(solved)


@pytest.mark.engines
def test_checks_use_the_engines_that_a_panel_has(at_work, engines):
    given = Engines(engines)
    assert at_hand() is given
    given.users = 0
    assert at_hand() is at_work


def test_code_is_shown_with_its_place():
    from parallab.catalog import STRATEGIES
    from parallab.parallel.flat import FlatUnit
    from parallab.source import STRATEGIES as PLACES

    assert list(PLACES) == list(STRATEGIES)
    for name in STRATEGIES:
        assert pl.show_code(name).text
    shown = pl.show_code(FlatUnit.collect, FlatUnit.free_gradients)
    assert shown.text.startswith("def collect(self, parameter: nn.Parameter) -> None:\n    ")
    assert shown.place.startswith("parallab/parallel/flat.py, lines ")
    assert shown._repr_markdown_() == f"`{shown.place}`\n```python\n{shown.text}\n```"
    for nothing in (3, len):
        with pytest.raises(TypeError, match="has no source to show"):
            pl.show_code(nothing)
    with pytest.raises(TypeError, match="needs a strategy"):
        pl.show_code()


def test_small_tables_of_a_report():
    from parallab.views import categories, operations

    model = pl.Model("nano")
    ddp, zero3 = (pl.predict(model, pl.Plan(name, devices=4)) for name in ("ddp", "zero3"))
    table = operations(ddp)
    size = f"{4 * model.parameters:,}"
    assert table.rows[0][:4] == ("all-reduce", "dp", table.rows[0][2], size)
    assert table.rows[-1][0] == "total"
    assert "predicted" in table.caption
    names = [row[0] for row in categories([ddp, zero3]).rows]
    assert names[0] == "parameters"
    assert names[-1] == "peak"
    with pytest.raises(ValueError, match="no Report"):
        categories([])


def test_pictures_of_ideas():
    from parallab import plots

    model, tp = pl.Model("micro"), pl.Plan("tp", tp=2)
    ddp, zero1 = pl.Plan("ddp", devices=4), pl.Plan("zero1", devices=4)
    texts = [t.get_text() for t in plots.plot_states(model, [ddp, zero1]).axes[0].texts]
    assert texts == ["  16.0 MiB", "  10.0 MiB"]
    exchange = plots.plot_exchange(model, [ddp])
    assert any("6.01 MiB" in t.get_text() for t in exchange.axes[0].texts)
    pipeline = plots.plot_schedules([pl.Plan("mp", pp=4), pl.Plan("pp", pp=4, schedule="zb")])
    headings = [ax.texts[0].get_text() for ax in pipeline.axes]
    assert "mp, one micro-batch: idle 75 % of the time" in [
        t.get_text() for ax in pipeline.axes for t in ax.texts
    ]
    assert len(headings) == 2
    assert any("256 a rank" in t.get_text() for t in plots.plot_split(tp, model).axes[0].texts)
    with pytest.raises(ValueError, match="ddp has no pipeline to draw"):
        plots.plot_schedules([ddp])
    with pytest.raises(ValueError, match="splits no matrix"):
        plots.plot_split(ddp, model)
