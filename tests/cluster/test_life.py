"""How a cluster starts and ends: in a script, at a prompt, by force; and on which devices."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

import parallab as pl
from parallab.cluster import Cluster, directory, gpus, interrupts, leases, places, room
from tests.conftest import cluster_folder, still_running

RUN = "cluster.run(pl.Model('nano'), pl.Plan('ddp', 2, batch=4, seq=32), steps=2)"


def python(*arguments: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=options.pop("cwd", None),
        **options,
    )


@pytest.mark.engines
def test_a_script_needs_no_main_guard_and_leaves_nothing_behind(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""\
        import gc, psutil, time
        import parallab as pl
        lines = []
        cluster = pl.Cluster(2, 'cpu', on_status=lines.append)
        print(lines)
        print(repr({RUN}))
        print([p.pid for p in psutil.Process().children(recursive=True)])
        started = time.monotonic()
        cluster.shutdown()
        cluster.shutdown()
        print(time.monotonic() - started, len(psutil.Process().children()), cluster)
        try:
            {RUN}
        except pl.ClusterError as error:
            print(error)
        """)
    )
    out, _ = python(str(script), cwd=tmp_path).communicate(timeout=120)
    status, report, pids, ended, refused = out.splitlines()
    assert "'Starting engines 0/2'" in status
    assert status.endswith("'2 engines are ready']")
    assert report.startswith("<measured Report: nano, ddp on 2")
    assert still_running(alive(pids), seconds=5) == []
    assert ended.endswith(" 0 <Cluster: shut down>")
    assert refused == "This cluster was shut down; Cluster(2) starts a new one."
    assert list(tmp_path.iterdir()) == [script]


@pytest.mark.engines
def test_a_prompt_ends_its_engines_when_a_name_is_used_again_and_at_its_end():
    prompt = python("-i", "-q", stdin=subprocess.PIPE)
    out, _ = prompt.communicate(
        textwrap.dedent(f"""\
        import parallab as pl, psutil, time
        children = lambda: [p.pid for p in psutil.Process().children(recursive=True)]
        cluster = pl.Cluster(1, 'cpu')
        print(children())
        cluster = None
        print(len(psutil.Process().children()))
        cluster = pl.Cluster(2, 'cpu')
        {RUN}
        print(children())
        """),
        timeout=120,
    )
    first, none_left, report, second = (
        line.removeprefix(">>> ") for line in out.replace(">>> ", "").splitlines() if line.strip()
    )
    assert len(first.split(",")) >= 4
    assert none_left == "0"
    assert report.startswith("<measured Report: nano, ddp on 2")
    assert prompt.returncode == 0
    assert still_running(alive(second), seconds=5) == []


@pytest.mark.engines
def test_a_notebook_looks_at_its_ranks_and_nothing_outlives_a_kernel_that_is_killed():
    manager, kernel = start_new_kernel(kernel_name="python3")
    try:
        pids = run_cell(
            kernel,
            "import parallab as pl, psutil, time\n"
            f"cluster = pl.Cluster(2, 'cpu'); {RUN}\n"
            "print([p.pid for p in psutil.Process().children(recursive=True)])",
        )
        folder = Path(run_cell(kernel, "print(cluster._pool._processes.directory)").strip())
        assert folder.is_dir()
        looked = run_cell(kernel, "%px print(rank := mesh.get_rank(), type(optimizer).__name__)")
        assert "0 AdamW" in looked
        assert "1 AdamW" in looked
        run_cell(
            kernel,
            "run = cluster.submit(pl.Model('nano'), pl.Plan('ddp', 2), steps=100_000)\n"
            "while run.report.steps < 2: time.sleep(0.02)",
        )
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel(now=True)  # SIGKILL
    processes = alive(pids)
    assert len(pids.split(",")) >= 6  # nursery, two engines, their nannies, controller
    assert still_running(processes, seconds=10) == []
    assert not folder.exists()


def run_cell(kernel: BlockingKernelClient, code: str) -> str:
    """What a cell prints and shows."""
    printed = []

    def hear(message: dict[str, Any]) -> None:
        assert message["msg_type"] != "error", message["content"]["traceback"]
        content = message["content"]
        printed.append(content.get("text") or content.get("data", {}).get("text/plain", ""))

    kernel.execute_interactive(code, output_hook=hear, timeout=120)
    return "".join(printed)


@pytest.mark.engines
def test_shutdown_in_the_middle_of_a_run(cluster):
    small = Cluster(1, "cpu")
    run = small.submit(pl.Model("nano"), pl.Plan("single", batch=2), steps=100_000)
    while not run.report.steps:
        time.sleep(0.01)
    started = time.monotonic()
    small.shutdown()
    assert time.monotonic() - started < 5  # 0.3 s on an idle machine
    with pytest.raises(pl.ClusterError, match=r"shutdown\(\) ended the run after \d+ of 100000"):
        run.result(5)
    assert run.report.steps >= 1
    assert small._repr_html_().count("shut down") == 2
    small.__exit__(None, None, None)


@pytest.mark.engines
def test_an_engine_that_cannot_start_is_told_and_nothing_is_left(monkeypatch, tmp_path):
    (tmp_path / "parallab").mkdir()  # hides the installed one from the new processes
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.exit('no luck today')")
    before = psutil.Process().children()
    with pytest.raises(pl.ClusterError, match=r"did not start\. Its last words: .*no luck today"):
        Cluster(1, "cpu")
    assert psutil.Process().children() == before


@pytest.mark.engines
def test_a_second_ctrl_c_does_not_end_the_end(monkeypatch):
    small = Cluster(1, "cpu")
    folder, processes = cluster_folder(small), small._pool._processes
    kill = processes.kill

    def interrupted(ranks):
        signal.raise_signal(signal.SIGINT)
        kill(ranks)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(processes, "kill", interrupted)
    with pytest.raises(KeyboardInterrupt):
        small.shutdown()
    assert not folder.exists()
    assert small._pool._processes is None
    assert processes._nursery.returncode == processes._controller.returncode == -signal.SIGKILL


def test_ctrl_c_comes_when_the_block_is_over():
    done = []

    @interrupts.uninterrupted()
    def outer() -> None:
        with interrupts.uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("inner")
        done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        outer()
    assert done == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_forgotten_directory_goes_when_the_next_one_is_made(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = python("-c", "")
    ended.communicate()
    here = socket.gethostname()
    owners = {
        "forgotten": f"{here} {ended.pid}",
        "in-use": f"{here} {os.getpid()}",
        "elsewhere": f"another-host {ended.pid}",
        "half-written": f"{here} ",
        "no-owner": None,
    }
    for name, owner in owners.items():
        folder = tmp_path / f"parallab-{name}"
        (folder / "security").mkdir(parents=True)
        if owner is not None:
            (folder / directory.OWNER).write_text(owner)
    (tmp_path / "parallab-link").symlink_to(tmp_path / "parallab-forgotten")
    made = directory.make()
    left = {path.name.removeprefix("parallab-") for path in tmp_path.iterdir()} - {"link"}
    assert left == {*owners, made.name.removeprefix("parallab-")} - {"forgotten"}
    assert (made / directory.OWNER).read_text() == owners["in-use"]

    with monkeypatch.context() as another_user:
        (made / directory.OWNER).write_text(owners["forgotten"])
        another_user.setattr(os, "getuid", lambda: -1)
        directory.remove_forgotten()
        assert made.exists()
    directory.remove_forgotten()
    assert not made.exists()


def alive(pids: str) -> list[psutil.Process]:
    """The processes of a printed list that still run."""
    numbers = [int(pid) for pid in pids.strip(" []\n").split(",")]
    return [psutil.Process(pid) for pid in numbers if psutil.pid_exists(pid)]


# Where ranks compute.


@pytest.mark.parametrize("n", [0, -1, 2.0, True, "4", None, 100_000])
def test_a_number_of_engines_that_is_none(n):
    with pytest.raises(pl.PlanError, match=r"must be a whole number of engines from 1 to 1,024"):
        Cluster(n)


@pytest.mark.parametrize("timeout", [0, -1.0, float("inf"), float("nan"), "x", None, True])
def test_a_timeout_that_is_none(timeout):
    with pytest.raises(pl.PlanError, match=r"must be a number of seconds greater than 0"):
        Cluster(1, timeout=timeout)


def test_more_engines_than_memory(monkeypatch):
    monkeypatch.setattr(room, "available_bytes", lambda: 10 * room.ENGINE_BYTES + 1)
    with pytest.raises(pl.PlanError, match=r"12 engines take about .*Cluster\(10\) would work"):
        places.choose(12, "cpu")
    assert len(places.choose(10, "cpu")) == 10


def test_cpu_ranks_share_the_cores_and_see_no_gpu(monkeypatch):
    monkeypatch.setattr(places, "cores", lambda: 8)
    (place, *_) = places.choose(3, "cpu")
    assert place.environment["OMP_NUM_THREADS"] == "2"
    assert place.environment["CUDA_VISIBLE_DEVICES"] == ""
    assert places.choose(16, "cpu")[0].environment["OMP_NUM_THREADS"] == "1"


def test_no_gpus(monkeypatch):
    monkeypatch.setattr(gpus, "present", list)
    with pytest.raises(pl.PlanError, match="needs a GPU, and torch can use none on this machine"):
        places.choose(1, "cuda")
    assert places.choose(1, "auto")[0].kind == "cpu"
    with pytest.raises(pl.PlanError, match="device='tpu' is not one of auto, cpu, cuda"):
        places.choose(1, "tpu")


@pytest.fixture
def four_gpus(monkeypatch, tmp_path):
    """A machine with four GPUs, the third of them in use."""
    monkeypatch.setattr(leases, "DIRECTORY", tmp_path / "leases")
    used = [0, 0, 40, 0]
    found = [
        gpus.Gpu(i, f"GPU-{i}", "H200", (80 - u) * 2**30, 80 * 2**30) for i, u in enumerate(used)
    ]
    monkeypatch.setattr(gpus, "present", lambda: found)
    return found


def test_each_engine_takes_a_free_gpu_and_keeps_others_off_it(four_gpus):
    mine = places.choose(2, "auto")
    assert [p.environment["CUDA_VISIBLE_DEVICES"] for p in mine] == ["GPU-0", "GPU-1"]
    assert gpus.free() == four_gpus[3:]
    with pytest.raises(pl.PlanError) as caught:
        places.choose(2, "auto")
    assert str(caught.value) == (
        "2 engines need 2 free GPUs, and of this machine's 4 GPUs 1 is free (0 taken by a parallab "
        "cluster, 1 taken by a parallab cluster, 2 50 % in use, 3 free); Cluster(1) or "
        "Cluster(2, device='cpu') would work."
    )
    for place in mine:
        place.release()
    assert len(places.choose(3, "cuda")) == 3


def test_a_lease_ends_with_its_process(monkeypatch, tmp_path):
    monkeypatch.setattr(leases, "DIRECTORY", tmp_path / "leases")
    code = (
        "import sys; from pathlib import Path; from parallab.cluster import leases\n"
        f"leases.DIRECTORY = Path({str(tmp_path / 'leases')!r})\n"
        "lease = leases.take('GPU-0'); print(lease is not None, flush=True); sys.stdin.read()"
    )
    other = python("-c", code, stdin=subprocess.PIPE)
    assert other.stdout.readline() == "True\n"
    assert leases.take("GPU-0") is None
    assert leases.taken("GPU-0")
    other.kill()
    other.communicate()
    lease = leases.take("GPU-0")
    assert lease is not None
    lease.release()
    lease.release()
    file = tmp_path / "leases" / "GPU-0.lock"
    assert oct(file.stat().st_mode)[-3:] == "444"
    assert oct(file.parent.stat().st_mode)[-4:] == "1777"


def test_a_link_in_a_leases_place_is_not_followed(monkeypatch, tmp_path):
    monkeypatch.setattr(leases, "DIRECTORY", tmp_path)
    (tmp_path / "GPU-0.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        leases.take("GPU-0")
    assert not Path(tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("variables", "names", "chosen"),
    [
        ({}, "AAA", [0, 1, 2]),
        ({"CUDA_VISIBLE_DEVICES": ""}, "AAA", []),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, "AAA", [2, 0]),
        ({"CUDA_VISIBLE_DEVICES": "0,7,1"}, "AAA", [0]),  # as CUDA does: the rest is ignored
        ({"CUDA_VISIBLE_DEVICES": "GPU-c"}, "AAA", [2]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, "AAA", []),  # names no single one
        ({"CUDA_VISIBLE_DEVICES": "1"}, "ABA", None),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "ABA", [1]),
    ],
)
def test_which_gpus_this_process_may_use(variables, names, chosen):
    assert gpus.visible(["GPU-a1", "GPU-b2", "GPU-c3"], names, variables) == chosen


def test_a_torch_without_gpus_has_none(monkeypatch):
    monkeypatch.setattr(gpus, "built_with_gpus", lambda: False)
    monkeypatch.setattr(gpus, "DRIVERS", (os.devnull,))
    monkeypatch.setattr(gpus, "_from_nvml", lambda: pytest.fail("was asked"))
    assert gpus.present() == []


def test_gpus_as_torch_tells_them(monkeypatch):
    answer = '[[0, "GPU-a1", "H200", 70, 80]]'
    monkeypatch.setattr(gpus, "built_with_gpus", lambda: True)
    monkeypatch.setattr(gpus, "DRIVERS", (os.devnull,))
    monkeypatch.setattr(gpus, "_from_nvml", lambda: None)
    monkeypatch.setattr(gpus, "_ASK_TORCH", f"print('{answer}')")
    assert gpus.present() == [gpus.Gpu(0, "GPU-a1", "H200", 70, 80)]
    monkeypatch.setattr(gpus, "_ASK_TORCH", "raise SystemExit('no driver')")
    assert gpus.present() == []


def test_memory_of_a_container(monkeypatch, tmp_path):
    monkeypatch.setattr(room, "CGROUP", tmp_path)
    machine = room.available_bytes()
    (tmp_path / "memory.max").write_text(f"{3 * 2**20}\n")
    (tmp_path / "memory.current").write_text(f"{2 * 2**20}\n")
    (tmp_path / "memory.stat").write_text(f"anon 7\ninactive_file {2**19}\n")
    assert room.available_bytes() == 3 * 2**19
    (tmp_path / "memory.max").write_text("max\n")
    assert room.available_bytes() == pytest.approx(machine, rel=0.2)
