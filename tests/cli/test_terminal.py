"""The terminal with real engines, as a person or a script uses it."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time

import psutil
import pytest

import parallab as pl

pytestmark = pytest.mark.engines

PARALLAB = [sys.executable, "-m", "parallab"]
SECONDS = 180  # generous: other work may share the cores


def parallab(argv):
    return subprocess.run(
        [*PARALLAB, *argv.split()], capture_output=True, text=True, timeout=SECONDS, check=False
    )


def test_run_prints_a_report_whose_payload_is_exact():
    done = parallab(
        "run --model micro --strategy zero3 --devices 4 --steps 10 --device cpu --json -"
    )
    assert done.returncode == 0, done.stderr
    report = pl.Report.from_dict(json.loads(done.stdout))
    assert (report.source, len(report.ranks), report.steps) == ("measured", 4, 10)
    # micro has 1,049,728 parameters: 8P and 4P of the paper's, in fp32.
    for rank in range(4):
        rows = report.communication(rank)
        assert {op: row["payload_bytes"] for (op, _), row in rows.items()} == {
            "all_gather": 8_397_824, "reduce_scatter": 4_198_912,
        }  # fmt: skip
    assert sum(report.losses[-5:]) / 5 < report.losses[0] - 1
    assert "10 steps, measured" in done.stderr


def test_verify_passes():
    done = parallab("verify --model nano --strategy zero2 --devices 2 --device cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("zero2 on 2 trains the same model as one device.")


def test_a_text_that_is_too_short_is_one_line(tmp_path):
    text = tmp_path / "short.txt"
    text.write_text("too short")
    done = parallab(f"run --model nano --devices 2 --device cpu --json - --text {text}")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "holds 9 bytes, and one sequence needs 129" in done.stderr


def test_a_run_that_fails_keeps_what_was_finished(tmp_path):
    saved = tmp_path / "r.json"
    command = f"run --model micro --devices 2 --device cpu --steps 100000 --json {saved}"
    with subprocess.Popen(
        [*PARALLAB, *command.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        engine = a_rank_at_work(process.pid)
        os.kill(engine, signal.SIGKILL)
        _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert re.search(r"error: Rank \d was killed \(SIGKILL\)", said.splitlines()[-1])
    assert pl.Report.load(saved).steps >= 1


def a_rank_at_work(pid):
    """The process of a rank that has computed for a second of its own."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                forked = "nursery" in child.cmdline() and "nursery" in child.parent().cmdline()
                if forked and child.cpu_times().user > 3:
                    return child.pid
        time.sleep(0.1)
    raise AssertionError("no rank got to work")


class Terminal:
    """A command in a terminal of its own: what it drew, and keys to press."""

    def __init__(self, argv):
        self.screen = ""
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            os.execv(PARALLAB[0], [*PARALLAB, *argv])
        termios.tcsetwinsize(self.descriptor, (24, 100))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.descriptor)

    def read_until(self, pattern, seconds=SECONDS):
        """Reads what is drawn until it holds the pattern, or the command ended."""
        deadline = time.monotonic() + seconds
        while pattern is None or not re.search(pattern, self.screen):
            left = deadline - time.monotonic()
            assert left > 0, f"no {pattern} in {seconds} s: {self.screen}"
            if select.select([self.descriptor], [], [], left)[0]:
                try:
                    self.screen += os.read(self.descriptor, 65536).decode()
                except OSError:  # how Linux says that the other side has closed
                    assert pattern is None, f"ended without {pattern}: {self.screen}"
                    return

    def press_ctrl_c(self):
        os.write(self.descriptor, b"\x03")

    def wait(self):
        self.read_until(None)
        status = os.waitpid(self.pid, 0)[1]
        self.pid = 0
        return os.waitstatus_to_exitcode(status)


def test_ctrl_c_in_a_terminal_keeps_what_was_done(tmp_path):
    target = tmp_path / "r.json"
    argv = f"run --model nano --devices 2 --device cpu --steps 100000 --json {target}"
    with Terminal(argv.split()) as terminal:
        terminal.read_until(r"ddp on 2: +0%.*loss \d\.\d{4}")
        terminal.press_ctrl_c()
        assert terminal.wait() == 130
    assert "Stopping after this step; Ctrl-C again ends at once." in terminal.screen
    assert "Memory at its peak, measured" in terminal.screen
    assert "Traceback" not in terminal.screen
    assert 1 <= pl.Report.load(target).steps < 100_000
