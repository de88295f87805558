"""Progress in a terminal: a bar, one status line, and waiting for the end."""

import io
import sys
from types import SimpleNamespace

import parallab as pl
from parallab.cli import main, watch
from parallab.progress import Progress


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
