"""Ctrl-C in a terminal, whenever it comes."""

import os
import signal
import subprocess
import sys

import pytest

import parallab as pl
from parallab.cli import main
from tests.cli.conftest import Recording


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
