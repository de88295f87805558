"""Reports side by side, in literal figures."""

import json
from dataclasses import replace

import pytest

import parallab as pl
from parallab.cli import main
from parallab.compare.side_by_side import (
    ANOTHER_MOMENT,
    OTHER_KERNELS,
    Difference,
    Row,
    compare,
    differences,
)
from parallab.predict import predict
from tests.recorded import recorded


def other(report):
    """The same run with 1,000 bytes more workspace and an all-gather."""
    changed = pl.Report.from_dict(report.to_dict())
    for rank in changed.ranks:
        for step in rank.steps:
            step.memory.peak_bytes += 1000
            if step.traced:
                step.memory.at_peak["workspace"] += 1000
            step.communication.append(replace(step.communication[0], op="all_gather"))
    return changed


def test_sections():
    first = recorded()
    memory, communication, whole = compare([first, other(first)])
    assert memory.title == "Memory at the peak of rank 1"
    assert memory.rows == (
        Row("peak", "bytes", (1_049_600, 1_050_600)),
        Row("parameters", "bytes", (500_992, 500_992)),
        Row("gradients", "bytes", (500_992, 500_992)),
        Row("workspace", "bytes", (47_616, 48_616)),
    )
    assert [row.differs for row in memory.rows] == [True, False, False, True]
    assert communication.rows == (
        Row("all-gather on dp, payload", "bytes", (0, 500_992)),
        Row("all-reduce on dp, payload", "bytes", (500_992, 500_992)),
        Row("recv on dp, payload", "bytes", (64, 64)),
        Row("sent on the wire, ideal rings", "bytes", (500_992, 1_001_984)),
    )
    assert {row.name: row.values[0] for row in whole.rows} == {
        "highest peak of any rank": 1_049_600,
        "step": pytest.approx(0.21),
        "tokens per second": pytest.approx(256 / 0.21),
        "last loss": pytest.approx(5.1),
    }


def test_differences_of_one_plan_have_a_cause():
    first = recorded()
    (found,) = differences(first, other(first))
    assert found == Difference("workspace", 47_616, 48_616, found.cause)
    assert "Gloo's clones" in found.cause
    elsewhere = recorded(plan=pl.Plan("zero1", 2, batch=4, seq=64))
    (found,) = differences(first, other(elsewhere))
    assert found.cause == ""
    assert differences(first, first) == []


def test_kernels_of_another_kind_are_a_cause_and_so_is_another_moment():
    model, plan = pl.Model("nano"), pl.Plan("single", devices=1)
    on_cpu, on_gpu = predict(model, plan), predict(model, plan, kernels="cuda")
    found = differences(on_cpu, on_gpu)
    assert "activations" in {d.category for d in found}
    assert {d.cause for d in found} == {OTHER_KERNELS}
    moved = predict(model, plan)
    moved.ranks[0].steps[0].memory.at_peak["gradients"] += 4
    (found,) = differences(on_cpu, moved)
    assert found.cause == ANOTHER_MOMENT


def test_a_rank_that_a_report_lacks_is_stood_for_by_one_of_its_stage():
    plan = pl.Plan("dp+pp", 4, batch=8, micro_batches=2, seq=64)
    measured, predicted = recorded(plan=plan), recorded(plan=plan)
    for report in (measured, predicted):
        for rank in report.ranks:
            rank.coords = plan.coordinates(rank.rank)
    del predicted.ranks[3], predicted.ranks[1]
    memory = compare([measured, predicted])[0]
    assert memory.title == "Memory at the peak of rank 3"
    # Rank 2 is the other of the second stage.
    assert memory.rows[0].values == (1_051_648, 1_050_624)


def test_nothing_to_compare():
    with pytest.raises(ValueError, match="no Report"):
        compare([])
    with pytest.raises(ValueError, match="no finished step"):
        compare([recorded(0)])


def test_in_the_terminal(tmp_path, capsys):
    first = recorded()
    names = [str(report.save(tmp_path / f"{i}.json"))
             for i, report in enumerate([first, other(first)])]  # fmt: skip
    assert main(["compare", *names]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"A  {names[0]}: measured, nano, ddp on 2")
    assert "workspace                        47,616     48,616" in lines
    assert "At its peak B holds, beyond A, in bytes" in lines
    assert lines[-1].split()[:2] == ["workspace", "+1,000"]

    assert main(["compare", *names, "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["differences"][0]["second_bytes"] == 48_616
    assert [report["source"] for report in data["reports"]] == ["measured", "measured"]


def test_one_report_alone_is_shown(tmp_path, capsys):
    assert main(["compare", str(recorded().save(tmp_path / "one.json"))]) == 0
    assert "beyond" not in capsys.readouterr().out


@pytest.mark.parametrize("steps", [None, 0])
def test_what_cannot_be_compared(tmp_path, capsys, steps):
    path = tmp_path / "r.json"
    if steps is not None:
        recorded(steps).save(path)
    assert main(["compare", str(path)]) == 2
    assert str(path) in capsys.readouterr().err
