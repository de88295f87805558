"""`parallab run`: what it prints, where, and its exit status."""

import json

import pytest

import parallab as pl
from parallab.cli import main
from parallab.text import report_text
from tests.cli.conftest import refused
from tests.recorded import recorded


def test_run_prints_a_table_and_nothing_else(capsys, stand_in):
    assert main(["run", "--model", "nano", "--devices", "2", "--batch", "4", "--seq", "64"]) == 0
    out, err = capsys.readouterr()
    assert out == report_text(recorded()) + "\n"
    assert err == "a library's chatter\n"
    assert stand_in.shut_down == 1


def test_flags_reach_the_cluster(stand_in, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("words " * 20)
    argv = (
        "run --model micro --strategy zero3 --devices 3 --batch 12 --seq 32 --micro-batches 2 "
        "--precision bf16 --recompute full --optimizer sgd --steps 7 --seed 9 --trace-every 2 "
        f"--device cpu --text {text}"
    )
    assert main(argv.split()) == 0
    assert stand_in.clusters == [(3, "cpu")]
    [(model, plan, steps, options)] = stand_in.submitted
    assert model == pl.Model("micro")
    assert plan == pl.Plan(
        "zero3", 3, batch=12, seq=32, micro_batches=2, precision="bf16", recompute="full",
        optimizer="sgd",
    )  # fmt: skip
    assert steps == 7
    assert options == {"seed": 9, "text": str(text), "trace_every": 2}


def test_a_text_is_named_from_the_root(stand_in, tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("words " * 40)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--text", "text.txt"]) == 0
    assert stand_in.submitted[0][3]["text"] == str(tmp_path / "text.txt")


@pytest.mark.parametrize(
    ("argv", "gpus", "devices"),
    [
        ("", [], 4),
        ("", [0, 1, 2], 3),
        ("--device cpu", [0, 1, 2], 4),
        ("--device cuda", [0, 1], 2),
        ("--dp 2", [0, 1, 2], 2),
        ("--devices 8", [0], 8),
        ("--strategy single", [0, 1, 2], 1),
    ],
)
def test_devices_by_default(stand_in, argv, gpus, devices):
    stand_in.gpus = gpus
    assert main(["run", *argv.split()]) == 0
    assert stand_in.clusters[0][0] == devices
    assert stand_in.submitted[0][1].devices == devices


def test_json_on_standard_output_stands_alone(capsys, stand_in):
    assert main(["run", "--devices", "2", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    report = pl.Report.from_dict(json.loads(out))
    assert (report.steps, report.plan.devices) == (5, 2)
    assert "Memory at its peak" in err
    assert "a library's chatter" in err


def test_json_to_a_file(capsys, stand_in, tmp_path):
    target = tmp_path / "r.json"
    assert main(["run", "--devices", "2", "--json", str(target)]) == 0
    assert pl.Report.load(target).steps == 5
    assert "Memory at its peak" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg", ".PNG"])
def test_plot(stand_in, tmp_path, suffix):
    target = tmp_path / f"r{suffix}"
    assert main(["run", "--devices", "2", "--plot", str(target)]) == 0
    start = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}[suffix.lower()]
    assert target.read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (pl.ClusterError("The engines\ndid not start."), 1),
        (pl.RankError("Rank 2 failed: no memory.", 2, "Traceback of rank 2"), 1),
        (pl.CorpusError("The text is empty."), 2),
        (pl.PlanError("There are 2 GPUs, not 4."), 2),
    ],
)
@pytest.mark.parametrize("verbose", [False, True])
def test_failures(capsys, stand_in, error, status, verbose):
    def fail():
        raise error

    stand_in.on_poll = fail
    assert main(["run", *(["--verbose"] if verbose else [])]) == status
    out, err = capsys.readouterr()
    assert out == ""
    line = " ".join(str(error).split())
    details = "Traceback of rank 2\n" if verbose and isinstance(error, pl.RankError) else ""
    assert err == f"a library's chatter\nparallab run: error: {line}\n{details}"
    assert stand_in.shut_down == 1


@pytest.mark.parametrize("target", ["-", "r.json"])
def test_a_failure_keeps_what_was_finished(capsys, stand_in, tmp_path, monkeypatch, target):
    polls = iter([None, None, pl.RankError("Rank 2 failed: no memory.", 2)])

    def fail_at_the_third():
        if error := next(polls):
            raise error

    stand_in.on_poll = fail_at_the_third
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--json", target]) == 1
    out, err = capsys.readouterr()
    assert "in 2 steps, measured" in (err if target == "-" else out)
    assert err.splitlines()[-1] == "parallab run: error: Rank 2 failed: no memory."
    saved = json.loads(out if target == "-" else (tmp_path / target).read_text())
    assert pl.Report.from_dict(saved).steps == 2
    assert stand_in.shut_down == 1


def test_a_target_that_vanished_is_a_failure_after_the_table(capsys, stand_in, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    stand_in.on_poll = lambda: folder.exists() and folder.rmdir()
    assert main(["run", "--json", str(folder / "r.json")]) == 1
    out, err = capsys.readouterr()
    assert "Memory at its peak" in out
    assert "No such file or directory" in err.splitlines()[-1]


def test_a_model_that_does_not_fit_starts_nothing(capsys, stand_in):
    err = refused(capsys, "run", "--model", "llama-3.1-405b", "--device", "cpu")
    assert "llama-3.1-405b with ddp needs" in err
    assert stand_in.clusters == []
