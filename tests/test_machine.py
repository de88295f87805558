"""`parallab doctor` and `bench`: what they find out about a machine."""

import json
import socket
import subprocess
import sys
from importlib import metadata

import pytest

from parallab import bench, doctor
from parallab.cli import main
from parallab.cluster import directory, gpus, room
from parallab.cluster.gpus import Gpu

GIB = 2**30


def looked(look):
    return list(look(look.__name__))


def test_a_machine_that_is_well(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "LOOKS", (doctor.packages, doctor.jupyter, doctor.ports))
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["good", "packages"], ["good", "jupyter"], ["good", "ports"],
    ]  # fmt: skip
    assert f"torch {metadata.version('torch')}" in lines[0]


def test_what_is_missing_or_too_old_is_named(monkeypatch):
    there = {"torch": "2.9.1", "jupyterlab": None}
    monkeypatch.setattr(doctor, "_version", lambda name: there.get(name, "9.2"))
    monkeypatch.setattr(
        metadata,
        "requires",
        lambda _: ["torch<3,>=2.11", "jupyterlab>=4.2", "psutil>=5", "pytest>=99; extra == 'test'"],
    )
    (found,) = looked(doctor.packages)
    assert found.state == "bad"
    assert "torch is 2.9.1 and must be <3,>=2.11" in found.words
    assert "jupyterlab is missing and must be >=4.2" in found.words
    assert "pytest" not in found.words
    assert found.remedy


def test_whatever_breaks_is_a_finding_and_the_status(monkeypatch, capsys):
    def broken_disk(_name):
        raise OSError("no\nspace")

    monkeypatch.setattr(doctor, "LOOKS", (broken_disk, doctor.ports))
    assert main(["doctor", "--json", "-"]) == 1
    first, second = json.loads(capsys.readouterr().out)
    assert first == {"about": "broken disk", "state": "bad", "words": "OSError: no space",
                     "remedy": ""}  # fmt: skip
    assert second["state"] == "good"


def test_gpus_that_others_use_and_a_torch_without_them(monkeypatch):
    used = [
        Gpu(0, "GPU-a", "H100", 10 * GIB, 80 * GIB),
        Gpu(1, "GPU-b", "H100", 79 * GIB, 80 * GIB),
    ]
    monkeypatch.setattr(gpus, "present", lambda: used[:1])
    assert looked(doctor.devices)[0].state == "notice"
    monkeypatch.setattr(gpus, "present", lambda: used)
    words = "1 of 2 GPUs are free: 0 88 % in use, 1 free."
    assert looked(doctor.devices)[0] == doctor.Finding("devices", "good", words)
    monkeypatch.setattr(gpus, "present", list)
    monkeypatch.setattr(gpus, "DRIVERS", ("/",))
    monkeypatch.setattr(gpus, "built_with_gpus", lambda: False)
    assert "built for the CPU" in looked(doctor.devices)[0].words


@pytest.mark.parametrize(
    ("free", "state"), [(0, "bad"), (GIB, "bad"), (GIB * 1.3, "notice"), (9 * GIB, "good")]
)
def test_memory_for_the_engines(monkeypatch, free, state):
    monkeypatch.setattr(room, "available_bytes", lambda: int(free))
    monkeypatch.setattr(gpus, "present", list)
    assert [finding.state for finding in looked(doctor.memory)] == [state]


def test_a_port_that_is_taken_is_said(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(doctor, "JUPYTER_PORT", server.getsockname()[1])
        (found,) = looked(doctor.ports)
    assert found.state == "good"
    assert "is taken: `parallab lab` uses the next one" in found.words


def test_leftovers_are_found(monkeypatch, tmp_path):
    monkeypatch.setattr(directory.tempfile, "gettempdir", lambda: str(tmp_path))
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                           capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip
    forgotten = tmp_path / f"{directory.PREFIX}1"
    forgotten.mkdir()
    (forgotten / directory.OWNER).write_text(f"{socket.gethostname()} {ended}")
    code = "import sys; sys.stdin.read()  # from parallab.cluster.boot import main; main()"
    orphan = subprocess.Popen([sys.executable, "-c", code, "engine", ended], stdin=subprocess.PIPE)
    try:
        found = {finding.words: finding.remedy for finding in looked(doctor.leftovers)}
    finally:
        orphan.communicate(b"")
    assert "1 directories of clusters that were killed." in found
    assert str(orphan.pid) in next(r for w, r in found.items() if "notebook is gone" in w)
    assert forgotten.exists()  # only looked at


@pytest.mark.engines
def test_a_bench_measures_every_figure(cluster):
    found = bench.measure(cluster, 2, 1.5)
    assert (found.ranks, found.device, found.rounds, found.start_seconds) == (4, "cpu", 2, 1.5)
    assert list(found.step_seconds) == ["plain", "recorded", "traced"]
    assert list(found.collective_bytes_per_second) == ["all_reduce", "all_gather", "reduce_scatter"]
    assert list(found.flops) == ["fp32", "bf16"]
    figures = found.step_seconds | found.collective_bytes_per_second | found.flops
    assert all(figure > 0 for figure in figures.values())
    assert json.loads(json.dumps(found.to_dict()))["rounds"] == 2
    assert str(found).startswith("Measured on 4 ranks (cpu), medians of 2\nstart-up     1.5 s")
