"""A plan taken home: files, commands, other packages' settings, and ranks that torchrun started."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

import parallab as pl
from parallab.cli import main
from parallab.cli.arguments import model_and_plan
from parallab.cli.main import make_parser
from parallab.rank.launched import LaunchedRank
from parallab.take_home import read_plan

MINI = pl.Model("mini")
# Plans that Accelerate and DeepSpeed both have words for.
BOTH = {
    "single": pl.Plan("single", micro_batches=2),
    "ddp": pl.Plan("ddp", 4, precision="bf16", clip=1.0),
    "zero1": pl.Plan("zero1", 4, micro_batches=4),
    "zero1-torch": pl.Plan("zero1-torch", 4),
    "zero2": pl.Plan("zero2", 2, optimizer="sgd"),
    "zero3": pl.Plan("zero3", 8, recompute="full", precision="bf16"),
    "pp": pl.Plan("pp", 4, micro_batches=8),
    "dp+pp": pl.Plan("dp+pp", dp=2, pp=2, zero=1, clip=0.5),
    "tp": pl.Plan("tp", 4, sequence_parallel=True),
    "tensor and ZeRO-3": pl.Plan("3d", dp=2, pp=1, tp=2, zero=3),
}
linux = pytest.mark.skipif(sys.platform != "linux", reason="DeepSpeed is built on Linux only")
by_name = pytest.mark.parametrize("plan", BOTH.values(), ids=BOTH.keys())


def other(plan, package):
    return {e.package: e for e in pl.take_home(MINI, plan).equivalents}[package]


def test_the_command_of_one_node_and_of_several():
    plan = pl.Plan("zero3", 8)
    assert pl.take_home(MINI, plan).command == (
        "torchrun --standalone --nproc-per-node=8 -m parallab run --plan plan.json "
        "--json report.json"
    )
    assert pl.take_home(MINI, plan, nodes=2).command == (
        "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=FIRST_NODE:29500 "
        "--nproc-per-node=4 -m parallab run --plan plan.json --json report.json"
    )
    with pytest.raises(pl.PlanError, match=r"8 ranks do not divide over nodes=3; .* 1, 2, 4, 8\."):
        pl.take_home(MINI, plan, nodes=3)


@by_name
def test_a_saved_plan_is_read_again(plan, tmp_path):
    folder = pl.take_home(MINI, plan).save(tmp_path / "new" / "folder")
    assert sorted(p.name for p in folder.iterdir()) == [
        "README.md", "accelerate.yaml", "deepspeed.json", "plan.json",
    ]  # fmt: skip
    assert read_plan(folder / "plan.json") == (MINI, plan)


def test_a_plan_that_cannot_be_read_is_a_sentence(tmp_path, capsys):
    file = tmp_path / "plan.json"
    for text, said in {
        "{": "cannot be read as a plan",
        "[]": "describes no plan: it must hold",
        '{"model": "mini", "plan": {"strategy": "zero9"}}': "no strategy called 'zero9'",
        '{"model": "maxi", "plan": {"strategy": "ddp"}}': "no model called 'maxi'",
        '{"model": "mini", "plan": {"strategy": "ddp", "micro_batch": 2}}': "has no micro_batch.",
    }.items():
        file.write_text(text)
        with pytest.raises(SystemExit):
            main(["predict", "--plan", str(file)])
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


def test_a_plan_file_stands_alone(tmp_path, capsys):
    file = tmp_path / "plan.json"
    file.write_text('{"model": "nano", "plan": {"strategy": "zero2", "devices": 2, "seq": 64}}')
    args = make_parser().parse_args(["predict", "--plan", str(file)])
    assert model_and_plan(args) == (pl.Model("nano"), pl.Plan("zero2", 2, seq=64))
    with pytest.raises(SystemExit):
        main(["predict", "--plan", str(file), "--strategy", "ddp", "--micro-batches", "2"])
    assert "leave out --strategy, --micro-batches." in capsys.readouterr().err


def test_the_command_writes_the_files(tmp_path, capsys):
    assert main(["take-home", "--strategy", "zero3", "--to", str(tmp_path)]) == 0
    assert "accelerate launch --config_file accelerate.yaml" in capsys.readouterr().out
    assert read_plan(tmp_path / "plan.json") == (MINI, pl.Plan("zero3", 4))
    file = tmp_path / "plan.json"
    assert main(["take-home", "--to", str(file)]) == 2
    assert f"{file} cannot be written: File exists." in capsys.readouterr().err


# As the packages themselves read them.


def launch(plan, tmp_path, nodes=1):
    """What `accelerate launch` makes of the file: its arguments, and its processes' environment."""
    from accelerate.commands import launch as command
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    pl.take_home(MINI, plan, nodes=nodes).save(tmp_path)
    file = str(tmp_path / "accelerate.yaml")
    args = command.launch_command_parser().parse_args(["--config_file", file, "train.py"])
    args, settings, _ = command._validate_launch_command(args)
    assert args.mixed_precision == ("no" if plan.precision == "fp32" or args.use_deepspeed
                                    else "bf16")  # fmt: skip
    if args.use_deepspeed:
        # As `launch_command` itself does before it starts the processes.
        args.deepspeed_fields_from_accelerate_config = ",".join(settings.deepspeed_config)
        return args, prepare_deepspeed_cmd_env(args)[1]
    return args, prepare_multi_gpu_env(args)


@by_name
def test_accelerate_reads_its_file(plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args, _ = launch(plan, tmp_path)
    assert (args.num_processes, args.num_machines) == (plan.devices, 1)
    kinds = (args.use_deepspeed, args.use_fsdp, args.use_megatron_lm)
    assert kinds == {
        "single": (False, False, False), "ddp": (False, False, False),
        "zero1": (True, False, False), "zero1-torch": (True, False, False),
        "zero2": (True, False, False), "zero3": (False, True, False),
        "pp": (False, False, True), "dp+pp": (False, False, True), "tp": (False, False, True),
        "3d": (False, True, False),
    }[plan.strategy]  # fmt: skip


def test_accelerate_makes_fsdp2_of_zero3(tmp_path):
    from accelerate.utils import FullyShardedDataParallelPlugin

    _, environment = launch(BOTH["zero3"], tmp_path)
    with mock.patch.dict(os.environ, environment):
        plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is True
    assert plugin.activation_checkpointing is True
    assert type(plugin.cpu_offload).__name__ == "OffloadPolicy"  # torch's name for none


@linux
def test_accelerate_hands_zero2_to_deepspeed(tmp_path, monkeypatch):
    from accelerate.utils import DeepSpeedPlugin

    monkeypatch.chdir(tmp_path)  # where the file is named without a folder
    _, environment = launch(BOTH["zero2"], tmp_path)
    with mock.patch.dict(os.environ, environment):
        plugin = DeepSpeedPlugin()
    assert plugin.zero_stage == 2
    assert plugin.gradient_accumulation_steps == 1
    assert plugin.deepspeed_config["optimizer"] == {"type": "SGD", "params": {"lr": 0.1}}


def test_accelerate_makes_a_mesh_of_tensor_and_zero3(tmp_path):
    args, environment = launch(BOTH["tensor and ZeRO-3"], tmp_path)
    assert args.use_parallelism_config
    # Its ParallelismConfig, which reads these, wants transformers to be installed.
    sizes = {name: environment[f"PARALLELISM_CONFIG_{name}_SIZE"]
             for name in ("DP_REPLICATE", "DP_SHARD", "TP", "CP")}  # fmt: skip
    assert sizes == {"DP_REPLICATE": "1", "DP_SHARD": "2", "TP": "2", "CP": "1"}


def test_accelerate_makes_a_pipeline_of_megatron(tmp_path):
    from accelerate.utils import MegatronLMPlugin

    _, environment = launch(BOTH["dp+pp"], tmp_path)
    with mock.patch.dict(os.environ, environment):
        plugin = MegatronLMPlugin()
    assert (plugin.tp_degree, plugin.pp_degree, plugin.num_micro_batches) == (1, 2, 4)
    assert (plugin.use_distributed_optimizer, plugin.gradient_clipping) == (True, 0.5)
    assert (plugin.context_parallel_size, plugin.recompute_granularity) == (1, "selective")


def test_accelerate_over_two_nodes(tmp_path):
    args, _ = launch(pl.Plan("zero3", 8), tmp_path, nodes=2)
    assert (args.num_machines, args.num_processes) == (2, 8)
    assert (args.main_process_ip, args.main_process_port) == ("FIRST_NODE", 29500)


@linux
@by_name
def test_deepspeed_reads_its_file(plan, tmp_path):
    from deepspeed.runtime import config as deepspeed

    pl.take_home(MINI, plan).save(tmp_path)
    ranks = SimpleNamespace(get_data_parallel_world_size=lambda: plan.dp)
    with mock.patch.object(deepspeed.dist, "get_rank", return_value=0):
        found = deepspeed.DeepSpeedConfig(str(tmp_path / "deepspeed.json"), ranks)
    assert (found.train_batch_size, found.train_micro_batch_size_per_gpu) == (
        plan.batch, plan.micro_batch,
    )  # fmt: skip
    assert found.gradient_accumulation_steps == plan.micro_batches
    assert found.zero_optimization_stage == (plan.zero if plan.dp > 1 else 0)
    assert found.bfloat16_config.enabled == (plan.precision == "bf16")
    assert found.gradient_clipping == (plan.clip or 0)
    assert found.optimizer_name.lower() == plan.optimizer
    assert found.tensor_parallel_config.autotp_size == (plan.tp if plan.tp > 1 else 0)


@pytest.mark.parametrize(
    ("plan", "package", "why"),
    [
        (pl.Plan("dp", 4), "Accelerate", "torch.nn.DataParallel itself"),
        (pl.Plan("dp", 4), "DeepSpeed", "torch.nn.DataParallel itself"),
        (pl.Plan("mp", 4), "Accelerate", 'device_map="auto"'),
        (pl.Plan("pp", 4, schedule="gpipe"), "Accelerate", "Megatron-LM's 1F1B"),
        (pl.Plan("pp", 4, schedule="zb"), "DeepSpeed", "its pipeline is 1F1B"),
        (pl.Plan("dp+pp", dp=2, pp=2, zero=2), "Accelerate", "(ZeRO-1), not ZeRO-2"),
        (pl.Plan("dp+pp", dp=2, pp=2, zero=2), "DeepSpeed", "refuses ZeRO-2 in a pipeline"),
        (pl.Plan("3d", dp=2, pp=1, tp=2, zero=2), "Accelerate", "ZeRO-3 (FSDP)"),
        (pl.Plan("3d", dp=2, pp=2, tp=2), "DeepSpeed", "from an mpu object"),
    ],
)
def test_where_there_is_no_equivalent_the_reason_stands(plan, package, why):
    found = other(plan, package)
    assert (found.file, found.text, found.command) == (None, "", "")
    assert why in found.words


@linux
def test_deepspeed_refuses_what_it_is_said_to_refuse():
    from deepspeed.runtime.pipe import engine

    source = Path(engine.__file__).read_text()
    assert "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism" in source


# The ranks that torchrun started.

SABOTAGED = """
import os, sys
from parallab.cli import main
from parallab.rank.trainer import Trainer

plain_step = Trainer.step

def step(self):
    if os.environ["RANK"] == "1" and self._next_step == 2:
        raise ValueError("out of luck")
    return plain_step(self)

Trainer.step = step
sys.exit(main())
"""


def torchrun(*argv, cwd):
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         *argv],
        cwd=cwd, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip


def test_torchrun_trains_the_plan_that_was_taken_home(tmp_path):
    plan = pl.Plan("pp", 2, seq=32)
    pl.take_home(pl.Model("nano"), plan).save(tmp_path)
    done = torchrun("-m", "parallab", "run", "--plan", "plan.json", "--json", "report.json",
                    "--device", "cpu", "--steps", "4", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Measured on cpu") == 1
    report = pl.Report.load(tmp_path / "report.json")
    assert (report.model, report.plan, report.steps) == (pl.Model("nano"), plan, 4)
    assert [rank.coords["pp"] for rank in report.ranks] == [0, 1]
    predicted = pl.predict(pl.Model("nano"), plan)
    assert [report.communication(rank) for rank in range(2)] == [
        predicted.communication(rank) for rank in range(2)
    ]


def test_a_rank_of_torchruns_that_fails_is_named_and_nothing_is_lost(tmp_path):
    (tmp_path / "sabotaged.py").write_text(SABOTAGED)
    done = torchrun("sabotaged.py", "run", "--model", "nano", "--seq", "32", "--device", "cpu",
                    "--steps", "9", "--json", "report.json", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 1
    assert "parallab run: error: Rank 1 failed in step 2: ValueError: out of luck" in done.stderr
    report = pl.Report.load(tmp_path / "report.json")
    assert (report.plan.devices, report.steps) == (2, 2)


def test_another_number_of_ranks_is_refused_on_each_and_said_once(monkeypatch, capsys, tmp_path):
    settings = dict(RANK="0", WORLD_SIZE="3", MASTER_ADDR="localhost", MASTER_PORT="1")
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    command = ["run", "--model", "nano", "--devices", "2", "--device", "cpu"]
    assert main(command) == 2
    assert "needs 2 ranks, and torchrun started 3" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    assert main(command) == 2
    assert main(["verify", "--model", "nano"]) == 2
    assert capsys.readouterr().err == ""
    with pytest.raises(pl.ModelError, match="can be predicted but not trained"):
        LaunchedRank(pl.Model("mini", experts=4, experts_per_token=1, expert_ffn=64),
                     pl.Plan("ddp", 3))  # fmt: skip
