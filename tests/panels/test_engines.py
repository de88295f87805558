"""The engines behind the panels: started at the first run, shared, restarted, released."""

from __future__ import annotations

import socket
from typing import ClassVar

import pytest

from parallab.errors import ClusterError
from parallab.models.spec import Model
from parallab.panels import engines
from parallab.panels.engines import Engines
from parallab.plan import Plan
from tests.panels.reach import text
from tests.synthetic import FakeRun


class FakeCluster:
    made: ClassVar[list[FakeCluster]] = []

    def __init__(self, n=4, device="auto", on_status=None):
        self.n, self.device, self.closed, self.released = n, "cpu", False, 0
        if on_status:
            on_status(f"Starting {n} engines")
        self.made.append(self)

    def submit(self, model, plan, steps):
        return FakeRun(model, plan, steps)

    def release(self):
        self.released += 1

    def shutdown(self):
        self.closed = True

    def health(self):
        return [{"host": socket.gethostname()}]


@pytest.fixture
def clusters(monkeypatch):
    import parallab.cluster

    FakeCluster.made = []
    monkeypatch.setattr(parallab.cluster, "Cluster", FakeCluster, raising=False)
    monkeypatch.setattr(engines, "_shared", {})
    return FakeCluster.made


def test_engines_start_at_the_first_run_and_stay(make, clusters):
    lab = make(device="cpu")
    assert clusters == []
    lab.run(Model("nano"), Plan("ddp", devices=2), 2)
    lab.run(Model("nano"), Plan("ddp", devices=4), 2)
    assert [c.n for c in clusters] == [4]
    assert "Starting 4 engines" in text(lab)


def test_more_devices_restart_them(make, clusters):
    lab = make(device="cpu")
    lab.run(Model("nano"), Plan("ddp", devices=4), 2)
    lab.run(Model("nano"), Plan("ddp", devices=8), 2)
    assert [(c.n, c.closed) for c in clusters] == [(4, True), (8, False)]
    assert "Restarting with 8 engines instead of 4" in text(lab)


def test_two_labs_share_the_kernels_engines_and_the_last_one_ends_them(make, clusters):
    first, second = make(device="cpu"), make(device="cpu")
    first.run(Model("nano"), Plan("ddp"), 2)
    second.run(Model("nano"), Plan("ddp"), 2)
    assert len(clusters) == 1
    first.panel._leave()
    assert not clusters[0].closed
    second.panel._leave()
    assert clusters[0].closed


def test_busy_engines_say_so(clusters):
    runner = Engines()
    with (
        runner.claim(4, lambda message: None),
        pytest.raises(ClusterError, match="busy with another panel's run on 4 devices"),
        runner.claim(2, lambda message: None),
    ):
        pass
    with runner.claim(2, lambda message: None) as cluster:
        assert cluster is clusters[0]


def test_a_given_cluster_is_used_as_it_is(make, clusters):
    mine = FakeCluster(2)
    lab = make(cluster=mine)
    assert lab.panel.controls._choices["devices"].options == [1, 2]
    lab.run(Model("nano"), Plan("ddp", devices=2), 2)
    lab.panel._release()
    assert (len(clusters), mine.released) == (1, 1)
    lab.panel._leave()
    assert not mine.closed


def test_releasing_without_engines_or_in_the_middle_of_a_run(clusters):
    runner = Engines()
    assert runner.release() == "Nothing to release: no engines have been started."
    with runner.claim(2, lambda message: None):
        assert runner.release() == "Nothing released: a run is under way."
    assert runner.release() == "Released: the engines hold no model now."
