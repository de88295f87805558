"""What cannot work is refused with one line, exit status 2, and nothing started."""

import os

import pytest

import parallab as pl
from parallab.rank.corpus import Corpus
from tests.cli.conftest import refused


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("dream", "parallab: error: argument COMMAND: invalid choice: 'dream'"),
        ("run --strategy zero4", "there is no strategy called 'zero4'. Did you mean zero3?"),
        ("run --strategy xyz", "there is no strategy called 'xyz'. Choose one of single, dp, ddp"),
        ("run --model mni", "there is no model called 'mni'. Did you mean mini?"),
        ("run --model llama-3-8b", "Did you mean llama-3.1-8b?"),
        ("run --nope", "parallab run: error: there is no argument --nope here"),
        ("run --colour red", "there is no argument --colour red here"),
        ("run extra", "there is no argument extra here"),
        ("run --strat ddp", "there is no argument --strat ddp here"),
        ("models --model nano", "parallab models: error: there is no argument --model nano here"),
        ("run --devices x", "argument --devices: x is not a whole number."),
        ("run --devices 2.5", "argument --devices: 2.5 is not a whole number."),
        ("run --devices 0", "devices=0 must be a whole number from 1 to 65,536."),
        ("run --devices -3", "devices=-3 must be a whole number"),
        ("run --devices 99999999999", "devices=99999999999 must be a whole number"),
        ("run --devices 4 --dp 2", "dp=2 × pp=1 × tp=1 is 2 ranks, but devices=4"),
        ("run --dp 0", "dp=0 must be a whole number"),
        ("run --strategy single --devices 2", "single runs on one device, not 2"),
        ("run --batch 3", "choose a batch of 4 or 8."),
        ("run --devices 4 --batch 8 --micro-batches 3", "choose a batch of 12 or 24."),
        ("run --seq 4096", "seq=4096 is longer than the 2048 tokens that mini has positions for"),
        ("run --seq -1", "seq=-1 must be a whole number"),
        ("run --steps 0", "argument --steps: 0 is not a whole number from 1 to 100,000."),
        ("run --steps 1e9", "argument --steps: 1e9 is not a whole number from 1 to 100,000."),
        ("run --steps 100001", "argument --steps: 100001 is not a whole number from 1 to 100,000."),
        (
            "run --trace-every 0",
            "argument --trace-every: 0 is not a whole number from 1 to 100,000.",
        ),
        ("run --trace-every x", "argument --trace-every: x is not a whole number from 1 to"),
        ("run --seed -1", "argument --seed: -1 is not a whole number from 0 to 2,147,483,647."),
        ("run --seed x", "argument --seed: x is not a whole number from 0 to 2,147,483,647."),
        ("run --precision fp16", "argument --precision: invalid choice: 'fp16'"),
        ("run --recompute some", "argument --recompute: invalid choice: 'some'"),
        ("run --optimizer lion", "argument --optimizer: invalid choice: 'lion'"),
        ("run --device tpu", "argument --device: invalid choice: 'tpu'"),
        ("run --text /no/such/file", "/no/such/file cannot be read: No such file or directory."),
        ("run --text /", "The text / is a directory, pipe or device, not a file."),
        ("run --text /dev/zero", "The text /dev/zero is a directory, pipe or device, not a file."),
        ("run --json /no/such/r.json", "/no/such/r.json cannot be written: No such file or dir"),
        ("run --json /", "/ cannot be written: Is a directory."),
        ("run --json /dev/full", "/dev/full is a pipe or device, not a file."),
        ("run --plot /no/such/r.png", "/no/such/r.png cannot be written"),
        ("run --plot r.txt", "r.txt is no picture's name: it must end in .png, .pdf, .svg."),
        ("verify --json r.json", "there is no argument --json r.json here"),
        ("verify --strategy zero9", "parallab verify: error: argument --strategy"),
        ("lab --port 99999", "argument --port: 99999 is not a whole number from 0 to 65,535."),
        ("lab --port x", "argument --port: x is not a whole number from 0 to 65,535."),
        ("lab /no/such.ipynb", "parallab lab: error: There is no notebook /no/such.ipynb."),
    ],
)
def test_refused_with_one_line(capsys, stand_in, argv, message):
    assert message in refused(capsys, *argv.split())
    assert stand_in.clusters == []


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (0, "argument --text: The text text.txt is empty."),
        (128, "text.txt holds 128 bytes, and one sequence needs 129; choose a longer text or"),
        (2**30 + 1, "text.txt holds 1,073,741,825 bytes, and every rank holds all of it; choose"),
    ],
)
@pytest.mark.parametrize("command", ["run", "verify"])
def test_a_text_of_a_size_that_cannot_work(
    capsys, stand_in, tmp_path, monkeypatch, command, size, message
):
    monkeypatch.chdir(tmp_path)
    with open("text.txt", "wb") as file:  # noqa: PTH123
        file.truncate(size)
    assert message in refused(capsys, command, "--text", "text.txt")
    assert stand_in.clusters == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_text_that_may_not_be_read(capsys, stand_in, tmp_path):
    text = tmp_path / "text.txt"
    text.touch(0o000)
    assert "cannot be read: Permission denied." in refused(capsys, "run", "--text", str(text))


@pytest.mark.timeout(20)  # opened, a pipe without another end would wait for ever
def test_pipes_are_refused(capsys, stand_in, tmp_path):
    pipe = str(tmp_path / "pipe.png")
    os.mkfifo(pipe)
    for flag in ("--json", "--plot"):
        assert f"{pipe} is a pipe or device" in refused(capsys, "run", flag, pipe)
    assert f"The text {pipe} is a directory, pipe or" in refused(capsys, "run", "--text", pipe)
    with pytest.raises(pl.CorpusError, match="is a directory, pipe or device"):
        Corpus(pipe, 256, 0)
    assert stand_in.clusters == []


def test_one_file_for_two_results(capsys, stand_in, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = ["run", "--json", "r.png", "--plot", str(tmp_path / "r.png")]
    err = refused(capsys, *argv)
    assert f"--json and --plot would both write {tmp_path / 'r.png'}; name two files." in err
    assert stand_in.clusters == []
    assert list(tmp_path.iterdir()) == []


def test_a_refused_request_leaves_no_file(capsys, stand_in, tmp_path):
    argv = ["run", "--batch", "3", "--json", str(tmp_path / "r.json")]
    assert "choose a batch" in refused(capsys, *argv)
    assert list(tmp_path.iterdir()) == []


def test_trying_a_target_leaves_an_existing_file_as_it_was(capsys, stand_in, tmp_path):
    old = tmp_path / "old.json"
    old.write_text("old")
    assert "choose a batch" in refused(capsys, "run", "--batch", "3", "--json", str(old))
    assert old.read_text() == "old"
