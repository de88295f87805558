"""Runs on real engines: what comes back, what stays, what is refused."""

from __future__ import annotations

import gc
import signal
import stat
import threading
import time

import psutil
import pytest
import torch.distributed as dist
import zmq

import parallab as pl
from parallab.catalog import STRATEGIES
from parallab.cluster import Cluster
from parallab.cluster import room as room_module
from parallab.progress import Progress
from parallab.rank.corpus import Corpus
from tests.conftest import cluster_folder, processes_of

pytestmark = pytest.mark.engines

NANO = pl.Model("nano")


def plan(strategy: str = "ddp", devices: int = 4, **choices: object) -> pl.Plan:
    return pl.Plan(strategy, devices, **{"batch": 8, "seq": 32, **choices})


def pids(cluster: Cluster) -> list[int]:
    return [row["pid"] for row in cluster.health()]


def test_a_run_gives_the_report_of_every_rank(cluster):
    report = cluster.run(NANO, plan(), steps=4, seed=7, trace_every=2)
    assert report.source == "measured"
    assert [rank.coords["dp"] for rank in report.ranks] == [0, 1, 2, 3]
    assert [len(rank.steps) for rank in report.ranks] == [4, 4, 4, 4]
    assert [s.traced for s in report.ranks[0].steps] == [True, True, False, True]
    assert report.losses[-1] < report.losses[0]
    assert report.communication()["all_reduce", "dp"]["payload_bytes"] == 4 * NANO.parameters
    assert report.environment["backend"] == "gloo"
    assert report.environment["devices"] == ["cpu"] * 4
    assert (report.environment["seed"], report.environment["trace_every"]) == (7, 2)
    assert report.environment["parallab"] == pl.__version__
    assert len(report.environment["hosts"]) == 1
    assert pl.Report.from_dict(report.to_dict()) == report


def test_plans_change_without_a_restart(cluster):
    before = pids(cluster)
    losses = {}
    for strategy, devices in [("zero3", 4), ("single", 1), ("ddp", 2), ("zero2", 4)]:
        report = cluster.run(NANO, plan(strategy, devices), steps=2)
        assert len(report.ranks) == devices
        losses[strategy] = report.losses[1]
    assert pids(cluster) == before
    assert list(losses.values()) == pytest.approx([losses["single"]] * 4, rel=1e-6)


def test_the_last_run_can_be_looked_at_and_released(cluster):
    cluster.run(NANO, plan("zero3"), steps=1)
    names = [type(thing).__name__ for thing in cluster.view.apply_sync(kept)[0]]
    assert names == ["str", "str", "str"]
    assert cluster.view.apply_sync(kept)[3] == ["FSDPDecoder", "AdamW", "DeviceMesh"]
    cluster.view.execute("model", silent=False, block=True)  # as %px does: it is displayed
    cluster.view.execute("mesh = 'mine'", block=True)
    cluster.release()
    assert cluster.view.apply_sync(kept) == [["", "", "str"]] * 4
    assert cluster.view.apply_sync(dist.is_initialized) == [False] * 4
    cluster.view.execute("del mesh", block=True)


def kept() -> list[str]:
    """What `%px` finds under the names of a run, by type; on an engine."""
    from IPython import get_ipython

    names = get_ipython().user_ns
    return [type(names[n]).__name__ if n in names else "" for n in ("model", "optimizer", "mesh")]


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "single"])
def test_release_leaves_no_tensor_of_a_strategy(cluster, strategy):
    cluster.release()
    before = cluster.view.apply_sync(elements)
    deep = pl.Model("nano", layers=4, kv_heads=4)
    cluster.run(deep, pl.Plan(strategy, 4, batch=8, seq=32), steps=1)
    cluster.view.execute("model", silent=False, block=True)
    assert min(cluster.view.apply_sync(elements)) > deep.parameters // 4
    cluster.release()
    assert cluster.view.apply_sync(elements) == before


def elements() -> int:
    """Elements of all tensors that an engine holds."""
    import torch

    gc.collect()
    return sum(t.numel() for t in gc.get_objects() if isinstance(t, torch.Tensor))


def resources() -> tuple[int, int]:
    """Threads and open files of an engine."""
    process = psutil.Process()
    return process.num_threads(), process.num_fds()


def test_changing_plans_leaks_no_threads_and_no_files(cluster):
    counts = []
    for _ in range(4):
        for strategy in ("ddp", "zero3"):
            cluster.run(NANO, plan(strategy), steps=1)
        counts.append(cluster.view.apply_sync(resources))
    for (threads, files), (later_threads, later_files) in zip(counts[1], counts[3], strict=True):
        assert later_threads - threads <= 2  # a pool's thread may come late; a leak is 10 a cycle
        assert later_files - files <= 4


def test_stop_ends_the_run_between_steps_and_keeps_what_was_done(cluster):
    run = cluster.submit(NANO, plan(), steps=50_000)
    seen = []
    while len(seen) < 3:
        seen += run.poll().steps
        assert not run.finished
    run.stop()
    report = run.result(30)
    seen += run.poll().steps
    assert run.poll() == Progress("stopped", f"Stopped after {len(seen)} of 50000 steps.")
    assert 3 <= report.steps == len(seen) < 50_000
    assert [step[2] for step in seen] == report.ranks[2].steps
    assert cluster.run(NANO, plan(), steps=1).steps == 1


def test_a_run_that_is_stopped_at_once_still_has_a_report(cluster):
    run = cluster.submit(NANO, plan(), steps=10_000)
    run.stop()
    assert run.result(30).steps < 10_000
    assert run.state == "stopped"


def test_one_run_at_a_time(cluster):
    run = cluster.submit(NANO, plan(), steps=50_000)
    with pytest.raises(pl.ClusterError, match=r"busy with a run \(ddp on 4 .*wait for its result"):
        cluster.submit(NANO, plan(), steps=1)
    with pytest.raises(pl.ClusterError, match="busy with a run"):
        cluster.release()
    with pytest.raises(TimeoutError, match="still under way"):
        run.result(timeout=0)
    assert "1 of 4" not in repr(cluster)
    run.stop()
    assert run.result(30).source == "measured"


def test_steps_stream_in_order_and_a_long_step_shows_what_it_does(cluster):
    run = cluster.submit(pl.Model("micro"), plan(batch=8, seq=512), steps=2)
    steps, gauges, states = [], [], []
    while not run.finished:
        news = run.poll()
        steps += news.steps
        gauges += news.gauges
        states.append(news.state)
        time.sleep(0.02)
    steps += run.poll().steps
    assert run.result().steps == 2
    assert [[s.step for s in step] for step in steps] == [[0] * 4, [1] * 4]
    assert {gauge.rank for gauge in gauges} == {0, 1, 2, 3}
    assert {gauge.phase for gauge in gauges} & {"forward", "backward"}
    assert max(gauge.bytes for gauge in gauges) > 4 * pl.Model("micro").parameters
    assert states == sorted(states, key=["starting", "running", "done"].index)


def test_ctrl_c_ends_the_run_and_gives_what_was_done(cluster):
    def interrupt() -> None:
        while cluster._run is None or cluster._run is before or not cluster._run.report.steps:
            time.sleep(0.02)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    before = cluster._run
    threading.Thread(target=interrupt).start()
    report = cluster.run(NANO, plan(), steps=50_000)
    assert 1 <= report.steps < 50_000


def test_a_text_of_ones_own(cluster, tmp_path, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text("a parallel lab " * 100)
    monkeypatch.chdir(tmp_path)
    report = cluster.run(NANO, plan(), steps=1, text="text.txt")
    assert report.environment["text"] == str(text)
    assert report.environment["corpus"] == Corpus(str(text), 256, 0).digest


def test_verify_finds_the_same_model(cluster):
    found = cluster.verify(NANO, plan("zero2", optimizer="sgd"))
    assert found.ok
    assert found.first_divergence is None
    assert len(found.losses) == 3
    assert "zero2 on 4 trains the same model as one device." in str(found)


def test_verify_names_the_first_tensor_that_diverges(cluster, sabotage):
    sabotage(
        "import torch\n"
        "def step(self):\n"
        "    record = plain_step(self)\n"
        "    if self.plan.devices > 1:\n"
        "        weights = self.module.named_parameters()\n"
        "        weight = next(w for n, w in weights if n.endswith('blocks.1.mlp.up.weight'))\n"
        "        with torch.no_grad(): weight[0, 0] += 1e-3\n"
        "    return record\n"
        "Trainer.step = step",
        [0, 1, 2, 3],
    )
    found = cluster.verify(NANO, plan("ddp"))
    assert not found.ok
    name, difference = found.first_divergence
    assert difference > 1e-4
    names = list(found.tensors)
    assert names.index(name) <= names.index("blocks.1.mlp.up.weight")
    assert found.worst_tensor[0] == "blocks.1.mlp.up.weight"
    assert f"First to diverge: {name}, by" in str(found)


@pytest.mark.parametrize(
    ("changes", "kind", "sentence"),
    [
        (
            {"plan": ("ddp", 8)},
            pl.PlanError,
            r"needs 8 devices and the cluster has 4; .*Cluster\(8",
        ),
        ({"steps": 0}, pl.PlanError, "steps=0 must be a whole number from 1"),
        ({"seed": -1}, pl.PlanError, "seed=-1 must be a whole number from 0"),
        ({"trace_every": 0}, pl.PlanError, "trace_every=0 must be a whole number from 1"),
        ({"text": "/no/such/text"}, pl.CorpusError, "/no/such/text cannot be read: No such file"),
        ({"seed": 2**31}, pl.PlanError, "seed=2147483648 must .* from 0 to 2,147,483,647"),
        ({"text": 5}, pl.CorpusError, "text=5 is not the path of a text file"),
        ({"text": "/dev/null"}, pl.CorpusError, "/dev/null is a directory, pipe or device"),
        (
            {"model": "llama-3.1-405b"},
            pl.PlanError,
            r"needs at least [\d,.]+ GiB .* of all 4 ranks",
        ),
        ({"plan": ("ddp", 4, 4096)}, pl.PlanError, "seq=4096 is longer than the 1024"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(cluster, changes, kind, sentence):
    before = cluster._run
    model = pl.Model(changes.pop("model", "nano"))
    strategy, devices, *seq = changes.pop("plan", ("ddp", 4))
    asked = plan(strategy, devices, seq=seq[0] if seq else 32)
    with pytest.raises(kind, match=sentence):
        cluster.submit(model, asked, **{"steps": 1, **changes})
    assert cluster._run is before


def test_what_is_no_model_and_no_plan_is_told(cluster):
    with pytest.raises(pl.ModelError, match=r"model='nano' is not a Model; Model\('nano'\)"):
        cluster.run("nano", plan())
    with pytest.raises(pl.PlanError, match=r"plan=None is not a Plan; Plan\('ddp', devices=4\)"):
        cluster.run(NANO, None)


def test_a_model_that_is_too_large_is_told_what_fits():
    model, free = pl.Model("small"), 700 * 2**20
    with pytest.raises(pl.PlanError, match=r"1\.5 GiB .* 700 MiB on this machine; zero3 needs"):
        room_module.check_fits(model, plan("ddp"), free, shared=True)
    with pytest.raises(pl.PlanError, match=r"of a rank, .* on its GPU; mini \(4\.\d M param"):
        room_module.check_fits(model, plan("single", 1), free // 5, shared=False)
    room_module.check_fits(model, plan("zero3"), free, shared=True)


def test_how_it_looks(cluster):
    assert repr(cluster) == "<Cluster: 4 engines on cpu, 4 ready>"
    table = cluster._repr_html_()
    assert table.count("<tr>") == 5
    assert f"{pids(cluster)[2]}</td>" in table
    assert "color" not in table  # the page's own, light or dark
    assert all(row["memory_bytes"] > 50 * 2**20 for row in cluster.health())


def test_nothing_listens_beyond_this_machine_and_logs_are_private(cluster):
    cluster.run(NANO, plan(), steps=1)  # the process group stays, with its sockets
    processes = processes_of(cluster_folder(cluster))
    listening = [
        connection.laddr.ip
        for process in processes
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) > 4
    assert {ip.removeprefix("::ffff:") for ip in listening} <= {"127.0.0.1", "::1"}
    folder = cluster_folder(cluster)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    logs = sorted(path.name for path in folder.glob("*.log"))
    assert logs == ["controller.log", *(f"engine-{i}.log" for i in range(4)), "nursery.log"]
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "README"]
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in files} == {0}


def test_messages_are_encrypted(cluster):
    client = cluster.view.client
    assert client.curve_serverkey
    assert client._mux_socket.mechanism == zmq.CURVE


def test_attaching_to_engines_that_are_not_ours(cluster):
    before = pids(cluster)
    file = cluster_folder(cluster) / "security" / "ipcontroller-client.json"
    with Cluster.attach(file) as guest:
        assert guest.run(NANO, plan("zero3"), steps=1).steps == 1
        client = guest.view.client
        with pytest.raises(pl.PlanError, match="needs a GPU for each of the 4 engines"):
            Cluster.attach(client, device="cuda")
        cluster.view.client[1].execute("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        while 1 in client.ids:
            time.sleep(0.02)
        with pytest.raises(pl.ClusterError, match="started elsewhere, so parallab does not rest"):
            guest.run(NANO, plan("zero3"), steps=1)
    assert cluster.run(NANO, plan(), steps=1).steps == 1  # ours: it restarts rank 1
    assert [a == b for a, b in zip(before, pids(cluster), strict=True)] == [True, False, True, True]
    with pytest.raises(pl.ClusterError, match=r"nowhere\.json does not exist"):
        Cluster.attach("/tmp/nowhere.json")


def test_what_is_not_a_cluster_is_not_attached_to(tmp_path):
    file = tmp_path / "report.json"
    for text in ('{"schema": 1, "cluster": {}}', "[]", "no JSON"):
        file.write_text(text)
        with pytest.raises(pl.ClusterError, match=r"report\.json is not the file of a cluster"):
            Cluster.attach(file)
    with pytest.raises(pl.ClusterError, match="5 is nothing to attach to"):
        Cluster.attach(5)


def test_the_nursery_starts_without_a_word(cluster):
    assert (cluster_folder(cluster) / "nursery.log").read_text() == ""
