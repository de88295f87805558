"""The calculator without a browser: any plan for any model, predicted at once."""

from __future__ import annotations

import json
import time

import ipywidgets as widgets
import pytest

from parallab.models.spec import Model
from parallab.panels import calculator as calculator_module
from parallab.panels.calculator import FIRST_MODEL, FIRST_PLAN, Calculator
from parallab.panels.cards import short
from parallab.panels.sums import STATES, bytes_per_parameter, payload_table, sum_in_words
from parallab.plan import Plan
from parallab.plots.peaks import kinds, plot_peaks
from parallab.predict import predict
from parallab.predict.memory import model_states
from parallab.report import Memory, Rank, Report, Step
from tests.panels.reach import LONG, find, text
from tests.plots.look import words_in
from tests.synthetic import fake_prediction

GIB = 2**30
LLAMA = {
    "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 1024, "vocab_size": 1000,
    "max_position_embeddings": 4096, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
}  # fmt: skip


@pytest.fixture
def calculator():
    calculator = Calculator()
    calculator.wait(LONG)
    yield calculator
    calculator.close()


def choose(calculator: Calculator, **choices) -> None:
    """Moves sliders and clicks, one after the other."""
    for name, value in choices.items():
        if name in calculator.controls._numbers:
            calculator.controls._numbers[name].value = value
        else:
            find(calculator, f"pl-{name}-{value}").click()
        calculator.wait(LONG)


def test_it_opens_with_a_prediction(calculator):
    report = calculator.report
    assert report == predict(FIRST_MODEL, FIRST_PLAN, kernels="cuda")
    assert "2 weights + 2 gradients + 12 optimizer = 16 bytes per parameter" in text(calculator)
    states = sum(report.ranks[0].peak.at_peak[s] for s in STATES)
    assert f"rank 0: {states / GIB:.1f} GiB states + " in text(calculator)
    assert f"= {report.peak_bytes / GIB:.1f} GiB of 79.2 GiB on H100 SXM" in text(calculator)
    assert "Estimated: activations: fused CUDA" in text(calculator)
    assert "Busiest rank, predicted" in text(calculator)
    assert "all-gather on dp</td>" in text(calculator)
    assert len(calculator.picture) > 5000


def test_every_input_moves_the_prediction(calculator):
    choose(calculator, strategy="zero1", devices=16, precision="fp32", batch=64, seq=256)
    plan = Plan("zero1", 16, batch=64, seq=256)
    assert calculator.report.plan == plan
    assert "4 weights + 4 gradients + 8 ÷ 16 optimizer = 8.5." in text(calculator)
    cuda = calculator.report.peak_bytes
    choose(calculator, kernels="cpu")
    assert calculator.report.peak_bytes > cuda
    choose(calculator, recompute="full", optimizer="sgd")
    assert calculator.report.plan.recompute == "full"
    assert calculator.report.plan.optimizer == "sgd"


def test_sliders_offer_only_what_works(calculator):
    choose(calculator, strategy="3d", devices=8)
    controls = calculator.controls
    batches = controls._numbers["batch"].options
    assert all(batch % (controls.plan.dp * controls.plan.micro_batches) == 0 for batch in batches)
    for micro_batches in controls._numbers["micro_batches"].options:
        choose(calculator, micro_batches=micro_batches)
        assert controls.reason is None
        if micro_batches >= 16:
            break
    assert max(controls._numbers["seq"].options) == controls.model.context


def test_a_thousand_devices(calculator):
    choose(calculator, strategy="zero3", devices=1024)
    assert calculator.report.plan.devices == 1024


def test_a_moving_slider_costs_its_callback_little(calculator):
    slider = calculator.controls._numbers["batch"]
    begin = time.perf_counter()
    for batch in slider.options[:10]:
        slider.value = batch
    seconds = (time.perf_counter() - begin) / 10
    calculator.wait(LONG)
    assert calculator.report.plan.batch == slider.options[9]
    print(f"{1000 * seconds:.1f} ms for each move")
    assert seconds < 0.2


def test_what_cannot_work_is_grey_and_says_why(calculator):
    choose(calculator, strategy="tp", devices=4)
    three = find(calculator, "pl-devices-3")
    assert three.disabled
    assert "does not divide" in three.tooltip


def test_nothing_of_another_plan_is_shown_beside_one_that_cannot_work(calculator):
    assert "pl-sum" in calculator._words.value
    calculator.controls.reason = "No."
    calculator._update()
    assert calculator.report is None
    assert calculator._words.value == calculator._sent.value == ""
    assert find(calculator, "pl-stale") is calculator._image
    calculator.controls.refresh()
    calculator.wait(LONG)
    assert "pl-stale" not in calculator._image._dom_classes


def test_a_pasted_config_is_read_and_chosen(calculator):
    pasted = find(calculator, "pl-config")
    pasted.value = json.dumps(LLAMA)
    calculator.wait(LONG)
    assert calculator.controls.model.name == "llama (pasted)"
    assert calculator.controls.model.hidden == 512
    assert calculator.report.model == calculator.controls.model
    assert "Read as llama (pasted)" in text(calculator)


def test_a_config_that_cannot_be_read_says_why_under_the_box(calculator):
    before = calculator.controls.model
    pasted = find(calculator, "pl-config")
    for config, words in (
        ("hello", "should begin with {"),
        ("{broken", "JSON"),
        (json.dumps({**LLAMA, "model_type": "<odd>"}), "&lt;odd&gt;"),
    ):
        pasted.value = config
        calculator.wait(LONG)
        assert words in calculator._read.value
        assert "pl-why" in calculator._read.value
    assert calculator.controls.model is before
    pasted.value = ""
    calculator.wait(LONG)
    assert calculator._read.value == ""


def test_who_pastes_is_heard_elsewhere():
    heard = []
    calculator = Calculator(heard.append)
    find(calculator, "pl-config").value = json.dumps(LLAMA)
    calculator.wait(LONG)
    calculator.close()
    assert [model.name for model in heard] == ["llama (pasted)"]


def test_the_card_is_a_gpu_or_so_many_gib(calculator):
    assert calculator.card.name == "H100 SXM"
    assert "79.2 GiB on H100 SXM" in text(calculator)
    calculator.card._gib.value = 0.02
    calculator.wait(LONG)
    assert calculator.card.name == "the device"
    assert "too much" in text(calculator)
    assert "pl-too-big" in text(calculator)
    calculator.card.show("a100-40")
    calculator.wait(LONG)
    assert "of 39.4 GiB on A100 SXM" in text(calculator)
    assert calculator.card.memory_bytes == round(39.38 * GIB)


def test_decimal_gigabytes_are_left_out():
    assert short("H100 SXM 80 GB") == "H100 SXM"
    assert short("MI250X 64 GB (one die of two)") == "MI250X (one die of two)"


def test_a_plan_from_elsewhere_is_shown(calculator):
    plan = Plan("3d", 64, dp=4, pp=4, tp=4, batch=160, seq=640, micro_batches=20, precision="bf16")
    model = Model("llama-3.1-8b")
    calculator.show(model, plan, "h200")
    calculator.wait(LONG)
    assert calculator.controls.plan == plan
    assert calculator.report.plan == plan
    assert calculator.card.name == "H200 SXM"


def test_what_goes_wrong_is_shown(calculator, monkeypatch):
    monkeypatch.setattr(calculator_module, "predicted", lambda *_: 1 / 0)
    choose(calculator, devices=8)
    assert "ZeroDivisionError" in text(calculator)
    assert find(calculator, "pl-strategy-zero3").disabled is False


def test_closing_leaves_no_widget_behind(calculator):
    from ipywidgets.widgets import widget as ipywidgets_widget

    before = set(ipywidgets_widget._instances)
    other = Calculator()
    other.wait(LONG)
    other.close()
    assert set(ipywidgets_widget._instances) == before


def test_it_has_few_widgets(calculator):
    """A page that is loaded again asks for every model."""
    todo, count = [calculator.widget], 0
    while todo:
        widget = todo.pop()
        count += 1
        todo += getattr(widget, "children", ())
    assert count < 160
    assert isinstance(calculator.widget, widgets.VBox)


# The sums.


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, (4, 4, 8)),
        ({"precision": "bf16"}, (2, 2, 12)),
        ({"optimizer": "sgd"}, (4, 4, 0)),
        ({"precision": "bf16", "optimizer": "sgd"}, (2, 2, 4)),
    ],
)
def test_bytes_per_parameter(options, sizes):
    assert tuple(bytes_per_parameter(Plan("ddp", **options)).values()) == sizes


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ("ddp", "= 16 bytes per parameter"),
        ("zero1", "2 weights + 2 gradients + 12 ÷ 8 optimizer = 5.5"),
        ("zero1-torch", "= about 5.5"),
        ("zero2", "2 weights + 2 ÷ 8 gradients + 12 ÷ 8 optimizer = 3.75"),
        ("zero3", "2 ÷ 8 weights + 2 ÷ 8 gradients + 12 ÷ 8 optimizer = 2"),
        ("dp", "on rank 0; the other ranks keep the weights alone"),
    ],
)
def test_what_the_data_axis_divides(strategy, words):
    assert sum_in_words(Plan(strategy, 8, precision="bf16")).endswith(words)


def test_the_sum_of_the_parts_is_what_the_formulas_say():
    for plan in (Plan("ddp", 4), Plan("ddp", 4, precision="bf16")):
        states = model_states(Model("mini"), plan)
        total = sum(bytes_per_parameter(plan).values()) * Model("mini").parameters
        assert sum(states[s] for s in ("parameters", "gradients", "optimizer")) == total


def test_payload_by_axis():
    report = fake_prediction(Model("mini"), Plan("3d", 8))
    table = payload_table(report)
    for axis in ("dp", "pp", "tp"):
        assert f" on {axis}</td>" in table
    assert "recv" not in table
    assert "Nothing is sent." in payload_table(fake_prediction(Model("mini"), Plan("single")))


# The bars.


def report_of(plan: Plan, peaks: dict[int, int], represents: dict[str, int] | None = None):
    ranks = [
        Rank(r, plan.coordinates(r), "cpu", "",
             [Step(0, None, None, False, Memory(size, {"activations": size}))])
        for r, size in peaks.items()
    ]  # fmt: skip
    environment = {"represents": represents} if represents else {}
    return Report("predicted", Model("mini"), plan, environment, ranks)


def test_ranks_that_are_alike_are_one_bar():
    plan = Plan("zero3", 4)
    names = [kind.name for kind in kinds(report_of(plan, {0: 5, 1: 5, 2: 5, 3: 4}))]
    assert names == ["ranks 0–2", "rank 3"]
    names = [kind.name for kind in kinds(report_of(plan, {0: 5, 1: 4, 2: 5, 3: 4}))]
    assert names == ["rank 0 + 1 alike", "rank 1 + 1 alike"]


def test_a_rank_tells_how_many_it_stands_for():
    plan = Plan("zero3", 1024)
    report = report_of(plan, {0: 5, 1023: 4}, {"0": 1023, "1023": 1})
    assert [kind.name for kind in kinds(report)] == ["rank 0 + 1,022 alike", "rank 1023"]
    report = report_of(Plan("3d", 1024, dp=32, pp=4, tp=8), {0: 5, 256: 4}, {"0": 256, "256": 256})
    assert [kind.name for kind in kinds(report)] == ["ranks 0–255", "ranks 256–511"]
    report = report_of(Plan("ddp", 1024), {0: 5}, {"0": 1024})
    assert [kind.name for kind in kinds(report)] == ["ranks 0–1023"]


def test_stages_are_named_and_apart():
    plan = Plan("pp", 2)
    figure = plot_peaks(report_of(plan, {0: 5, 1: 5}))
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["rank 0, stage 0", "rank 1, stage 1"]


def test_bars_add_up_to_the_peak_and_the_card_is_a_line():
    report = fake_prediction(Model("mini"), Plan("ddp", 2))
    figure = plot_peaks(report, 64 * 2**20, "H100 SXM")
    ax = figure.axes[0]
    bars = [bar for bar in ax.patches if bar.get_y() < 0.5]
    reached = max(bar.get_x() + bar.get_width() for bar in bars)
    assert round(reached * 2**20) == report.ranks[0].peak.peak_bytes
    words = words_in(figure)
    assert "H100 SXM: 64.0 MiB" in words
    assert "predicted · mini · ddp on 2" in words
    assert "MiB, predicted" in words
    assert "activations" in words
    assert "GB" not in words


def test_many_kinds_are_the_highest():
    plan = Plan("pp", 32, micro_batches=32)
    report = report_of(plan, {r: 100 + r for r in range(32)})
    figure = plot_peaks(report)
    assert "the 16 highest of 32 kinds" in words_in(figure)
    assert len(figure.axes[0].get_yticklabels()) == 16
