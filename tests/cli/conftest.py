"""Engines are stood in for by a recording here; test_terminal.py runs real ones."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

import parallab as pl
from parallab.cli import main
from parallab.cluster import room
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
