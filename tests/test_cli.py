"""The terminal: what each command prints, where, and its exit status.

Engines are stood in for here by a recording; tests/test_terminal.py runs real ones.
"""

import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

import parallab as pl
from parallab.cli import main, watch
from parallab.cluster import Verification, room
from parallab.progress import Progress
from parallab.rank.corpus import Corpus
from parallab.text import report_text
from tests.recorded import recorded


class Recording(pl.Replay):
    """A run that also notes what was asked of it; `on_poll` may press Ctrl-C or fail."""

    def __init__(self, report, on_poll):
        super().__init__(report)
        self.on_poll = on_poll
        self.stops = 0

    def poll(self):
        self.on_poll()
        return super().poll()

    def stop(self):
        self.stops += 1
        super().stop()

    @property
    def report(self):
        """Of the steps that were played."""
        ranks = [replace(rank, steps=rank.steps[: self._at]) for rank in self._report.ranks]
        return replace(self._report, ranks=ranks)


@pytest.fixture
def stand_in(monkeypatch):
    """In place of `parallab.cluster`: a Cluster that plays a recording and notes its calls."""
    calls = SimpleNamespace(
        clusters=[], submitted=[], verified=[], shut_down=0, on_poll=lambda: None, gpus=[],
        verification=None, run=None,
    )  # fmt: skip

    class Cluster:
        def __init__(self, n, device, *, on_status):
            calls.clusters.append((n, device))
            on_status("Starting engines 1/2")

        def __enter__(self):
            print("a library's chatter")
            return self

        def __exit__(self, *_):
            calls.shut_down += 1

        def submit(self, model, plan, steps=5, **options):
            calls.submitted.append((model, plan, steps, options))
            calls.run = Recording(recorded(steps, model=model.name, plan=plan), calls.on_poll)
            return calls.run

        def verify(self, model, plan, **options):
            calls.verified.append((model, plan, options))
            return calls.verification

    gpus = SimpleNamespace(free=lambda: calls.gpus, present=lambda: calls.gpus)
    module = SimpleNamespace(Cluster=Cluster, gpus=gpus, room=room)
    monkeypatch.setitem(sys.modules, "parallab.cluster", module)
    return calls


def refused(capsys, *argv):
    """The one line that a refused request gets."""
    try:
        status = main(argv)
    except SystemExit as end:
        status = end.code
    out, err = capsys.readouterr()
    assert status == 2
    assert out == ""
    assert err.count("\n") == 1
    return err


# What cannot work.


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


def test_no_command_shows_the_help(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: parallab")
    assert "strategies" in err


def test_a_refused_request_leaves_no_file(capsys, stand_in, tmp_path):
    argv = ["run", "--batch", "3", "--json", str(tmp_path / "r.json")]
    assert "choose a batch" in refused(capsys, *argv)
    assert list(tmp_path.iterdir()) == []


def test_trying_a_target_leaves_an_existing_file_as_it_was(capsys, stand_in, tmp_path):
    old = tmp_path / "old.json"
    old.write_text("old")
    assert "choose a batch" in refused(capsys, "run", "--batch", "3", "--json", str(old))
    assert old.read_text() == "old"


# run


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


# verify


def verification(*differences, loss=5.4):
    tensors = {f"blocks.{i}.mlp.up.weight": d for i, d in enumerate(differences)}
    return Verification(pl.Plan("zero3"), (5.5, loss), (5.5, 5.4), tensors, finite=True)


def test_verify_of_the_same_weights(capsys, stand_in):
    stand_in.verification = verification(1e-8, 3e-5)
    argv = "verify --model nano --strategy zero3 --steps 2 --seed 7 --device cpu"
    assert main(argv.split()) == 0
    out, err = capsys.readouterr()
    assert out == f"{stand_in.verification}\n"
    assert "5.400000" in out
    assert "3.0e-05 (blocks.1.mlp.up.weight)" in out
    assert err == "a library's chatter\n"
    [(model, plan, options)] = stand_in.verified
    assert (model, plan) == (pl.Model("nano"), pl.Plan("zero3"))
    assert options == {"steps": 2, "seed": 7, "text": None}


def test_verify_of_other_weights_names_the_first(capsys, stand_in):
    stand_in.verification = verification(1e-8, 2e-3, 5e-3)
    assert main(["verify", "--strategy", "zero3"]) == 1
    assert "First to diverge: blocks.1.mlp.up.weight, by 2.0e-03." in capsys.readouterr().out


def test_verify_of_another_loss_says_which_step(capsys, stand_in):
    stand_in.verification = verification(1e-8, loss=5.41)
    assert main(["verify", "--strategy", "zero3"]) == 1
    assert "the loss of step 1" in capsys.readouterr().out


# Ctrl-C


def press_at(*polls):
    """Presses Ctrl-C at these polls, the first being 1."""
    count = 0

    def on_poll():
        nonlocal count
        count += 1
        if count in polls:
            os.kill(os.getpid(), signal.SIGINT)

    return on_poll


def test_ctrl_c_stops_after_the_step_and_keeps_what_was_done(capsys, stand_in, tmp_path):
    target = tmp_path / "r.json"
    stand_in.on_poll = press_at(2)
    assert main(["run", "--steps", "9", "--devices", "2", "--json", str(target)]) == 130
    out, err = capsys.readouterr()
    assert stand_in.run.stops == 1
    assert "in 2 steps, measured" in out
    assert "Ctrl-C again ends at once" in err
    assert pl.Report.load(target).steps == 2
    assert stand_in.shut_down == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_ends_at_once(capsys, stand_in, monkeypatch):
    stand_in.on_poll = press_at(2, 3)
    monkeypatch.setattr(Recording, "stop", lambda self: None)  # a step that never ends
    assert main(["run", "--steps", "9"]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == "parallab run: error: ended by Ctrl-C."
    assert stand_in.shut_down == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_engines_start(capsys, stand_in, monkeypatch):
    def interrupted(self, n, device, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["parallab.cluster"].Cluster, "__init__", interrupted)
    assert main(["run"]) == 130
    assert capsys.readouterr() == ("", "parallab run: error: ended by Ctrl-C.\n")


# Progress


def test_the_bar_is_drawn_on_a_terminal_only(stand_in, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["run", "--devices", "2"]) == 0
    drawn = terminal.getvalue()
    assert "\r\x1b[KStarting engines 1/2\r\x1b[K" in drawn
    assert "ddp on 2" in drawn
    assert "5/5" in drawn
    assert "loss 5.1000" in drawn


def test_the_status_line_ends_with_its_block(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    with watch.status_line() as say:
        say("Starting engines 1/2")
    say("2 engines are ready")
    assert terminal.getvalue() == "\r\x1b[KStarting engines 1/2\r\x1b[K"


def test_follow_waits_for_the_end(monkeypatch):
    states = iter(["starting", "running", "running", "done"])
    run = SimpleNamespace(
        plan=pl.Plan("ddp", 2), total_steps=2, poll=lambda: Progress(next(states)),
        result=lambda: "the report",
    )  # fmt: skip
    waits = []
    monkeypatch.setattr(watch.time, "sleep", waits.append)
    assert watch.follow(run) == ("the report", False)
    assert waits == [watch.POLL_SECONDS] * 3


# models, strategies, gpus, --version


def test_models(capsys):
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["nano", "125,248", "2", "64", "4/2", "176", "256", "1,024"]
    assert "llama-3.1-405b  405,853,388,800     126  16,384     128/8" in "\n".join(lines)
    assert len(lines) == 21


def test_strategies(capsys):
    assert main(["strategies"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("single: Single device\n  One device holds everything")
    assert "zero3: ZeRO-3 (FSDP)" in out
    assert "arXiv:1910.02054" in out
    assert max(map(len, out.splitlines())) <= 100


def test_gpus(capsys, stand_in):
    assert main(["gpus"]) == 0
    assert capsys.readouterr().out == "torch can use no GPU here; ranks run on the CPU.\n"
    stand_in.gpus = [
        SimpleNamespace(index=i, name="H200", free=not i, free_bytes=(140 - 70 * i) * 2**30,
                        total_bytes=140 * 2**30)
        for i in range(2)
    ]  # fmt: skip
    assert main(["gpus"]) == 0
    assert capsys.readouterr().out == (
        "gpu  name  free  GiB free  GiB in all\n"
        "0    H200  yes      140.0       140.0\n"
        "1    H200  no        70.0       140.0\n"
    )


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"parallab {pl.__version__}\n"


@pytest.mark.parametrize("command", ["lab", "run", "verify", "models", "strategies", "gpus"])
def test_every_command_has_help(capsys, command):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: parallab {command}")


def test_help_of_a_command_that_trains_names_every_flag(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    out = capsys.readouterr().out
    flags = (
        "--model --strategy --devices --dp --batch --seq --micro-batches --precision --recompute "
        "--optimizer --steps --seed --text --json --plot --device --trace-every --verbose"
    )
    assert [f for f in flags.split() if f"{f} " not in out and f"{f}\n" not in out] == []


# As a process


def test_python_m_is_the_same():
    done = subprocess.run(
        [sys.executable, "-m", "parallab", "models"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("model ")
    assert done.stderr == ""


def test_a_reader_that_goes_away_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "parallab", "strategies"],
            stdout=pipe, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    assert done.stderr == b""
    assert done.returncode == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_error(closed):
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m parallab models {closed}', sys.executable],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("model ") == (closed == "2>&-")


def test_an_error_without_standard_error_stays_off_standard_output():
    done = subprocess.run(
        ["sh", "-c", '"$0" -m parallab run --batch 3 2>&-', sys.executable],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")


INTERRUPTED_IMPORT = """
import runpy, sys

class CtrlC:
    def find_spec(self, name, *_):
        if name == "parallab.cli.measure":
            raise KeyboardInterrupt

sys.meta_path.insert(0, CtrlC())
"""


@pytest.mark.parametrize(
    "start", ["runpy.run_module('parallab', run_name='__main__')", "from parallab.cli import main"]
)
def test_ctrl_c_while_modules_are_loaded(start):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT + start], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_while_the_command_line_is_read(capfd, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["parallab.cli.main"], "make_parser", interrupted)
    assert main(["models"]) == 130
    assert capfd.readouterr() == ("", "")


def test_checking_the_command_line_loads_no_torch():
    code = "import sys, parallab.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
