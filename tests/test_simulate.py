"""Which ranks are simulated, deep models against shallow ones, and the processes.

That fake ranks are as real ones is what tests/test_three_ways.py shows.
"""

import gc
import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from parallab.errors import ModelError, PlanError, RankError
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.predict.communication import payload_per_step
from parallab.predict.memory import held_states
from parallab.predict.ranks import kinds_of_ranks
from parallab.report import Report, total_communication
from parallab.simulate import crew, simulate
from parallab.simulate.layers import TRIALS, Lines, NoLineError, Trace, whole_step
from parallab.simulate.rank import run
from parallab.simulate.worker import simulated

PLAIN = dict(name="plain", layers=4, hidden=32, heads=4, kv_heads=4, ffn=64, vocab=257)
TIED = dict(
    name="tied", layers=4, hidden=48, heads=6, kv_heads=2, ffn=52, vocab=257, tied=True,
    norm="layer", positions="learned", mlp="plain", activation="gelu", qkv_bias=True,
    out_bias=True, mlp_bias=True, qk_norm=True,
)  # fmt: skip


def on(devices, strategy, **choices):
    return dict(strategy=strategy, devices=devices, batch=8, seq=16) | choices


def test_one_rank_in_numbers():
    [rank] = simulate(Model("nano"), Plan("single")).ranks
    [step] = rank.steps
    assert step.memory.states == dict(
        parameters=500_992, gradients=500_992, optimizer=1_002_068, buffers=8_192
    )
    assert {name: size for name, size in step.memory.at_peak.items() if size} == dict(
        parameters=500_992, optimizer=1_002_068, buffers=8_192,
        activations=3_093_516, temporary=524_288,
        workspace=4_096,  # two sequences of 128 tokens and what follows each, 8 bytes an id
    )  # fmt: skip
    assert step.memory.peak_bytes == 5_133_152
    assert step.communication == []


def test_what_has_no_time_has_none_in_the_report():
    report = simulate(Model("nano"), Plan("pp", 2))
    assert report.source == "simulated"
    assert report.step_seconds is report.tokens_per_second is report.bubble is None
    for rank in report.ranks:
        [step] = rank.steps
        assert step.loss is step.seconds is step.begin is None
        assert step.spans == []
        assert step.memory.series == step.memory.marks == {}
        assert {row.seconds for row in step.communication} == {None}
        assert sum(step.memory.at_peak.values()) == step.memory.peak_bytes
    assert Report.from_dict(json.loads(json.dumps(report.to_dict()))) == report


# Which ranks differ.


@pytest.mark.parametrize(
    ("sizes", "choices", "kinds"),
    [
        (PLAIN, on(4, "dp"), {0: 1, 1: 2, 3: 1}),
        (PLAIN, on(4, "zero3"), {0: 3, 3: 1}),  # 257 rows are 65 + 65 + 65 + 62
        (TIED, on(4, "zero1-torch"), {0: 1, 1: 1, 2: 1, 3: 1}),
        (PLAIN, on(4, "pp", micro_batches=4, schedule="gpipe"), {0: 1, 1: 2, 3: 1}),
        (PLAIN, on(4, "tp"), {0: 3, 3: 1}),
    ],
)
def test_ranks_of_a_kind_are_alike(sizes, choices, kinds):
    model, plan = Model(**sizes), Plan(**choices)
    assert kinds_of_ranks(model, plan) == kinds
    report = simulate(model, plan, ranks=range(plan.devices))
    first = {}
    for rank in report.ranks:
        step = asdict(rank.steps[0])
        del step["traffic"]  # to its own neighbours
        first.setdefault(json.dumps(step), rank.rank)
    # Kinds may be told apart in more than bytes, never in less.
    assert set(first.values()) <= set(kinds)


def test_the_report_holds_one_rank_of_each_kind():
    report = simulate(Model(**PLAIN), Plan(**on(4, "dp")))
    assert [rank.rank for rank in report.ranks] == [0, 1, 3]
    assert [rank.coords["dp"] for rank in report.ranks] == [0, 1, 3]
    assert report.environment["represents"] == {"0": 1, "1": 2, "3": 1}
    assert report.environment["extrapolated"] == {}


@pytest.mark.parametrize("devices", [1024, 65_536])
def test_every_rank_of_a_large_world_is_of_a_kind(devices):
    model = Model("llama-3.1-70b")
    for choices in (
        dict(strategy="zero3"), dict(strategy="dp"), dict(strategy="zero1-torch"),
        dict(strategy="3d", pp=4, tp=8, zero=2, clip=1.0),
    ):  # fmt: skip
        kinds = kinds_of_ranks(model, Plan(devices=devices, **choices))
        assert sum(kinds.values()) == devices
        assert len(kinds) < 20


# Deep models.


@pytest.fixture
def frozen():
    """Keeps what pytest has loaded out of the many collections."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


# With 5,000 words the highest moment of few blocks is the loss, that of many the gradients.
DEEP = dict(name="nano", layers=15, vocab=5000)


@pytest.mark.parametrize(
    ("choices", "rank", "sizes"),
    [
        (dict(strategy="single", seq=16), 0, TRIALS[0]),
        (dict(strategy="zero3", devices=4, seq=16, precision="bf16", clip=1.0), 0, TRIALS[2]),
        (dict(strategy="zero1", devices=4, seq=16, micro_batches=2, clip=1.0), 3, TRIALS[0]),
        (dict(strategy="dp+pp", dp=2, pp=2, zero=2, seq=16), 0, TRIALS[0]),
    ],
)
def test_a_deep_step_follows_from_shallow_ones(frozen, choices, rank, sizes):
    model, plan = Model(**DEEP), Plan(**choices)
    order = dict(model=model.to_dict(), plan=plan.to_dict(), rank=rank)
    said = []
    answer = simulated(order, said.append)
    assert answer["sizes"] == list(sizes)
    assert len(said) == 3
    assert answer["step"] == asdict(run(model, plan, rank).step)


@pytest.mark.parametrize("strategy", ["ddp", "zero1-torch"])
def test_what_is_dealt_out_as_it_fits_is_simulated_whole(frozen, strategy):
    model, plan = Model(**DEEP), Plan(strategy, 2, seq=16)
    said = []
    answer = simulated(dict(model=model.to_dict(), plan=plan.to_dict(), rank=1), said.append)
    assert answer["sizes"] == []
    assert said == ["rank 1, 15 of 15 blocks"]


def test_a_number_that_is_not_on_its_line_is_noticed(frozen):
    model, plan = Model(**DEEP), Plan("single", seq=16)
    first, second, third = (run(model, plan, 0, {0: n}) for n in (1, 2, 4))
    assert Lines(first, second, third, 3).step(3) == third.step
    with pytest.raises(NoLineError):
        Lines(first, second, run(model, plan, 0, {0: 5}), 3)
    with pytest.raises(NoLineError):
        Lines(first, second, Trace(third.step, third.moments[:-1]), 3)


def test_where_no_trial_fits_the_whole_is_simulated(frozen):
    model, plan = Model(**DEEP), Plan("single", seq=16)
    made = []

    def crooked(blocks):
        made.append(blocks[0])
        return run(model, plan, 0, {0: {1: 1, 2: 2, 4: 5, 9: 3}[blocks[0]]})

    step, sizes = whole_step(crooked, {0: 9})
    assert sizes == []
    assert made == [1, 2, 4, 9]  # the next trial would be more work than nine blocks
    assert step == run(model, plan, 0, {0: 3}).step


# Large worlds.


@pytest.mark.parametrize(
    ("choices", "ranks"),
    [
        (dict(strategy="3d", devices=1024, dp=32, pp=4, tp=8, precision="bf16"), [0, 1023]),
        (dict(strategy="zero3", devices=1024), None),
    ],
)
def test_70b_on_1024(choices, ranks):
    model, plan = Model("llama-3.1-70b"), Plan(**choices)
    report = simulate(model, plan, ranks=ranks)
    for rank in report.ranks:
        [step] = rank.steps
        assert step.memory.states == held_states(model, plan, rank.rank)
        counted = total_communication(step.communication)
        payload = {key: row["payload_bytes"] for key, row in counted.items()}
        assert payload == payload_per_step(model, plan, rank.coords)
        assert "exact to the byte" in report.environment["extrapolated"][str(rank.rank)]


# The processes.


def test_this_process_stays_as_it_is():
    code = (
        "import sys, parallab as pl\n"
        "from parallab.simulate import simulate\n"
        "report = simulate(pl.Model('nano'), pl.Plan('zero3', 2))\n"
        "assert report.peak_bytes, report\n"
        "assert 'torch' not in sys.modules\n"
        "print('fine')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_progress_counts_ranks_and_says_what_is_done():
    told = []
    simulate(Model("nano"), Plan("pp", 2), progress=lambda *what: told.append(what))
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert told[-1] == (2, 2, "done")
    assert {total for _, total, _ in told} == {2}
    assert any("1 of 1 blocks" in words for _, _, words in told)


@pytest.fixture
def resting():
    """A process that waits for its next order, as every simulation leaves one."""
    simulate(Model("nano"), Plan("single"))
    while len(crew._resting) > 1:
        crew._resting.pop().end()
    return crew._resting[0]


def test_what_progress_raises_ends_the_simulation_and_its_process(resting):
    class StoppedError(Exception):
        pass

    def stop(_done, _total, words):
        if "blocks" in words:
            raise StoppedError

    with pytest.raises(StoppedError):
        simulate(Model("nano"), Plan("zero2", 2), progress=stop)
    assert not resting.alive
    assert crew._resting == []


def test_a_process_that_dies_is_a_rank_that_failed(resting):
    def kill(_done, _total, _words):
        resting._process.kill()

    with pytest.raises(RankError, match="process that simulated rank 0 was killed from outside"):
        simulate(Model("nano"), Plan("single"), progress=kill)


def test_one_that_has_died_while_it_rested_is_replaced(resting):
    resting._process.kill()
    resting._process.wait()
    assert simulate(Model("nano"), Plan("single")).peak_bytes == 5_133_152


def test_a_file_with_a_modules_name_beside_a_notebook_does_no_harm(tmp_path, monkeypatch):
    crew.dismiss()
    (tmp_path / "torch.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert simulate(Model("nano"), Plan("single")).peak_bytes == 5_133_152


def test_an_error_in_a_process_comes_with_its_traceback():
    plan = Plan("single", seq=8)
    object.__setattr__(plan, "optimizer", "sgd ")  # a fault that no rule has caught
    with pytest.raises(RankError, match="Simulating rank 0 failed: ") as failed:
        simulate(Model("nano"), plan)
    assert "Traceback" in failed.value.details
    assert failed.value.rank == 0


def test_what_cannot_be_simulated_is_refused():
    for ranks, message in (
        ([0, 4], "There is no rank 4: the plan has 4 ranks"),
        (range(10**12), "There is no rank 4"),
        (["0"], "There is no rank '0'"),
        ([True], "There is no rank True"),
        (3, "ranks=3 must be a list of ranks"),
    ):
        with pytest.raises(PlanError, match=message):
            simulate(Model("nano"), Plan("ddp"), ranks=ranks)
    with pytest.raises(PlanError, match="No rank was named"):
        simulate(Model("nano"), Plan("ddp"), ranks=[])
    with pytest.raises(PlanError, match="has 2 layers, fewer than the 4 stages"):
        simulate(Model("nano"), Plan("pp"))
    experts = Model("nano", experts=4, experts_per_token=2, expert_ffn=64)
    with pytest.raises(ModelError, match="can be predicted but not trained"):
        simulate(experts, Plan("single"))
