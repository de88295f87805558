"""`parallab advise` in a terminal, and models that come from a config.json."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

import parallab as pl
from parallab.cli import main
from parallab.units import GIB
from tests.cli.conftest import refused

CONFIG = {
    "model_type": "llama", "vocab_size": 32_000, "hidden_size": 2048, "intermediate_size": 5632,
    "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip


def advise(capsys, line):
    """Standard output of a request that can be answered."""
    assert main(["advise", *line.split()]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_the_answer_in_words(capsys):
    out = advise(capsys, "--model llama-3.1-8b --gpu h100")
    first, second, third, *_ = out.splitlines()
    assert first.startswith("llama-3.1-8b (8.03 B parameters) on 8 × H100 SXM 80 GB (79.2 GiB)")
    assert second == "256 sequences of 4,096 tokens a step = 1,048,576 tokens, bf16, adamw"
    assert third.startswith("71.3 GiB to fill of each (headroom 10 %); ")
    assert "One node, and the model does not fit on one GPU: pipeline, ZeRO or tensor" in out
    assert "\n 1. " in out
    assert "What does not work, and the least that it takes of 71.3 GiB" in out
    assert "DDP needs " in out


def test_json_alone_on_standard_output():
    line = [
        sys.executable, "-m", "parallab", "advise", "--model", "llama-3.1-70b", "--gpu", "h100",
        "--nodes", "2", "--gpus-per-node", "8", "--interconnect", "fast", "--json", "-",
    ]  # fmt: skip
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    data = json.loads(done.stdout)
    assert len(data["options"]) >= 3
    best = data["options"][0]
    assert best["need_bytes"] <= best["room_bytes"]
    plan = pl.Plan.from_dict(best["plan"])
    assert plan.devices == 16
    plan.check(pl.Model("llama-3.1-70b"))


def test_json_in_a_file_beside_the_words(capsys, tmp_path):
    target = tmp_path / "advice.json"
    out = advise(capsys, f"--model gpt2 --gpu t4 --gpus-per-node 2 --json {target}")
    assert "Plans that fit" in out
    assert json.loads(target.read_text())["hardware"]["gpus_per_node"] == 2


def test_flags_reach_the_advice(capsys):
    out = advise(
        capsys,
        "--model llama-3.2-1b --gpu a100-80 --nodes 2 --gpus-per-node 2 --interconnect 10 "
        "--link pcie-4 --free 40,40,40,20.5 --headroom 0.2 --batch 64 --seq 2048 "
        "--precision fp32 --optimizer sgd --limit 2 --json -",
    )
    data = json.loads(out)
    hardware = data["hardware"]
    assert hardware["gpu"]["name"] == "a100-80"
    assert hardware["interconnect"]["bits_per_second"] == 10e9
    assert hardware["link"]["name"] == "pcie-4"
    assert hardware["free_bytes"] == [40 * GIB] * 3 + [20 * GIB + GIB // 2]
    assert hardware["headroom"] == 0.2
    assert data["task"] == {"batch": 64, "seq": 2048, "precision": "fp32", "optimizer": "sgd"}
    assert len(data["options"]) == 2


@pytest.fixture
def gpus(monkeypatch):
    """Stand-ins for this machine's free GPUs."""
    found = []
    module = SimpleNamespace(
        gpus=SimpleNamespace(free=lambda: found),
        room=SimpleNamespace(available_bytes=lambda: 8 * GIB),
    )
    monkeypatch.setitem(sys.modules, "parallab.cluster", module)
    return found


def gpu(name, total_gib, free_gib):
    return SimpleNamespace(name=name, total_bytes=int(total_gib * GIB), free_bytes=free_gib * GIB)


def test_without_a_gpu_it_is_about_this_machine(capsys, gpus):
    data = json.loads(advise(capsys, "--model mini --json -"))
    assert data["hardware"]["free_bytes"] == [2 * GIB] * 4
    assert data["task"] == {"batch": 16, "seq": 128, "precision": "fp32", "optimizer": "adamw"}
    data = json.loads(advise(capsys, "--model mini --devices 2 --free 1 --json -"))
    assert data["hardware"]["free_bytes"] == [GIB] * 2


def test_this_machines_free_gpus_are_taken_by_their_name(capsys, gpus):
    gpus += [gpu("NVIDIA H100 80GB HBM3", 79.18, 60), gpu("NVIDIA H100 80GB HBM3", 79.18, 79)]
    data = json.loads(advise(capsys, "--model gpt2 --json -"))
    assert data["hardware"]["gpu"]["name"] == "h100"
    assert data["hardware"]["free_bytes"] == [60 * GIB, 79 * GIB]
    # More ranks than free GPUs run on the CPU, as in `parallab run`.
    data = json.loads(advise(capsys, "--model mini --devices 4 --json -"))
    assert data["hardware"]["gpu"]["name"] == "this machine"


def test_unlike_or_unknown_gpus_count_with_their_memory_alone(capsys, gpus):
    gpus += [gpu("NVIDIA H100 80GB HBM3", 79.18, 60), gpu("Tesla T4", 14.56, 14)]
    data = json.loads(advise(capsys, "--model gpt2 --json -"))
    assert data["hardware"]["gpu"]["name"] == "this machine"
    assert data["hardware"]["free_bytes"] == [60 * GIB, 14 * GIB]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--gpu h10", "argument --gpu: there is no GPU called 'h10'. Did you mean h100?"),
        ("--gpu h100 --link nvlink", "there is no link called 'nvlink'. Did you mean nvlink-"),
        ("--gpu h100 --interconnect x", "There is no interconnect called 'x'. Choose one of fast"),
        ("--gpu h100 --devices 4", "--devices counts ranks on this machine; with --gpu give --nod"),
        ("--gpu h100 --free 1,2", "free_bytes names 2 GPUs, and there are 8"),
        ("--gpu h100 --free much", "argument --free: much is not GiB, or GiB of each GPU."),
        ("--gpu h100 --free nan", "argument --free: nan is not GiB"),
        ("--gpu h100 --headroom 2", "headroom=2.0 must be a number from 0 to 0.95."),
        ("--gpu h100 --nodes 0", "nodes=0 must be a whole number from 1 to 65,536."),
        ("--gpu h100 --seq 5000", "seq=5000 is longer than the 2048 tokens"),
        ("--gpu h100 --batch -1", "batch=-1 must be a whole number"),
        ("--gpu h100 --limit 0", "argument --limit: 0 is not a whole number from 1 to 1,000."),
        ("--gpu h100 --precision fp8", "argument --precision: invalid choice: 'fp8'"),
        ("--gpu h100 --zero 3", "there is no argument --zero 3 here"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(capsys, line, message):
    assert message in refused(capsys, "advise", *line.split())


# A config.json in a preset's place, for every command.


def test_a_model_from_its_config(capsys, tmp_path):
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    file = folder / "config.json"
    file.write_text(json.dumps(CONFIG))
    for path in (file, folder):
        data = json.loads(advise(capsys, f"--model {path} --gpu l4 --gpus-per-node 2 --json -"))
        assert data["model"]["name"] == "tiny-llama"
        assert data["model"]["parameters"] == 1_100_048_384


def test_a_preset_is_not_hidden_by_a_folder_of_its_name(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    data = json.loads(advise(capsys, "--model gpt2 --gpu t4 --gpus-per-node 1 --json -"))
    assert data["model"]["parameters"] == 124_439_808


@pytest.mark.parametrize("command", ["run", "verify", "advise"])
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("no.json", None, "argument --model: There is no file"),
        ("org/model", None, "There is no file org/model: give the path of a config.json."),
        ("bad.json", "{", "is not JSON"),
        ("odd.json", '{"model_type": "bert"}', "model_type='bert'; parallab reads the families"),
    ],
)
def test_a_config_that_cannot_be_read(capsys, tmp_path, monkeypatch, command, name, text, message):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / name).write_text(text)
    assert message in refused(capsys, command, "--model", name)
