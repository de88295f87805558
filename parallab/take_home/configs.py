"""A plan in the words of Hugging Face Accelerate and of DeepSpeed, where they have words for it.

Sources: Accelerate's guides on FSDP, DeepSpeed and Megatron-LM; DeepSpeed's configuration JSON. The
tests read every file with those packages' own parsers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parallab.plan import Plan

FIRST_NODE = "FIRST_NODE"  # an address to fill in
ACCELERATE_FILE, DEEPSPEED_FILE = "accelerate.yaml", "deepspeed.json"
# parallab.parallel.optimizer's rates; the rest are torch's defaults, of which DeepSpeed has others.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {
        "type": "AdamW",
        "params": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01},
    },
    "sgd": {"type": "SGD", "params": {"lr": 0.1}},
}
NO_DATA_PARALLEL = (
    "No equivalent: one process that drives all GPUs is torch.nn.DataParallel itself. ddp trains "
    "the same weights with less memory on the first GPU and fewer bytes."
)


@dataclass(frozen=True)
class Equivalent:
    """What another package calls a plan.

    Attributes:
        file, text: its configuration; None and "" where the package has no equivalent.
        command: starts `train.py`, a script of your own.
        words: what the file leaves to the script, or why there is none.
    """

    package: str
    file: str | None
    text: str
    command: str
    words: str


def accelerate(plan: Plan, nodes: int) -> Equivalent:
    """`accelerate launch --config_file …`."""
    reason = _why_not_accelerate(plan)
    if reason is not None:
        return Equivalent("Accelerate", None, "", "", reason)
    kind, settings, words = _accelerate_kind(plan)
    config = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        # DeepSpeed's own file says what is bf16 there.
        **({} if kind == "DEEPSPEED" else {
            "mixed_precision": "no" if plan.precision == "fp32" else "bf16"}),
        "num_processes": plan.devices,
        "num_machines": nodes,
        "machine_rank": 0,
        **({"main_process_ip": FIRST_NODE, "main_process_port": 29500} if nodes > 1 else {}),
        "main_training_function": "main",
        **settings,
    }  # fmt: skip
    if plan.precision == "bf16" and kind in ("MULTI_GPU", "NO"):
        words.append(
            "Weights stay fp32 and autocast computes in bf16: more memory than in parallab."
        )
    if nodes > 1:
        words.append(f"Fill in {FIRST_NODE}, and machine_rank on each node.")
    return Equivalent(
        "Accelerate",
        ACCELERATE_FILE,
        _yaml(config),
        f"accelerate launch --config_file {ACCELERATE_FILE} train.py",
        " ".join(words),
    )


def deepspeed(plan: Plan, nodes: int) -> Equivalent:
    """`deepspeed train.py` with a configuration JSON."""
    reason = _why_not_deepspeed(plan)
    if reason is not None:
        return Equivalent("DeepSpeed", None, "", "", reason)
    words = []
    if plan.pp > 1:
        words.append(f"In the script, PipelineModule(layers, num_stages={plan.pp}) cuts the model, "
                     "and train_batch takes the place of forward and backward.")  # fmt: skip
    else:
        words.append(f'deepspeed.initialize(..., config="{DEEPSPEED_FILE}") reads it.')
    words.append(f"Sequences of {plan.seq:,} tokens.")
    if plan.sequence_parallel:
        words.append("Norms and residuals are not split: it has no sequence parallelism of this "
                     "kind.")  # fmt: skip
    if plan.recompute == "full":
        words.append("Recomputing is the model's: model.gradient_checkpointing_enable().")
    if plan.strategy == "zero1-torch":
        words.append("Its ZeRO-1 reduces and gathers flat shards as the paper does, a third fewer "
                     "bytes than torch's.")  # fmt: skip
    launch = f"deepspeed --num_gpus {plan.devices // nodes} train.py"
    if nodes > 1:
        launch = f"deepspeed --hostfile hostfile --num_nodes {nodes} train.py"
        words.append(f"hostfile has a line `NODE slots={plan.devices // nodes}` for each node.")
    text = json.dumps(_deepspeed_config(plan), indent=2) + "\n"
    return Equivalent("DeepSpeed", DEEPSPEED_FILE, text, launch, " ".join(words))


def _why_not_accelerate(plan: Plan) -> str | None:
    if plan.strategy == "dp":
        return NO_DATA_PARALLEL
    if plan.strategy == "mp":
        return (
            "No equivalent with a rank for each device. The nearest is one process: "
            'from_pretrained(..., device_map="auto") lays consecutive layers on consecutive GPUs, '
            "and they wait for each other as here."
        )
    if plan.pp > 1 and plan.schedule != "1f1b":
        return (
            f"No equivalent: its pipeline is Megatron-LM's 1F1B, and this plan is {plan.schedule}. "
            "The same plan with schedule='1f1b' has one."
        )
    if plan.pp > 1 and _stage(plan) >= 2:
        return (
            f"No equivalent: beside a pipeline, Megatron-LM shards the optimizer only (ZeRO-1), "
            f"not ZeRO-{plan.zero}. The same plan with zero=1 has one."
        )
    if plan.tp > 1 and _stage(plan) == 2:
        return (
            "No equivalent: beside the tensor axis it has ZeRO-1 (Megatron-LM) and ZeRO-3 (FSDP). "
            "The same plan with zero=1 or zero=3 has one."
        )
    return None


def _accelerate_kind(plan: Plan) -> tuple[str, dict[str, Any], list[str]]:
    """The distributed type, its settings, and what they leave to the script."""
    script = [f"Each rank's DataLoader gives {_sequences(plan)} of {plan.seq:,} tokens."]
    if plan.micro_batches > 1:
        script.append(f"Accelerator(gradient_accumulation_steps={plan.micro_batches}).")
    checkpointing = "model.gradient_checkpointing_enable() recomputes."
    if plan.pp > 1 or (plan.tp > 1 and plan.data != "zero3"):
        return "MEGATRON_LM", {"megatron_lm_config": _megatron(plan)}, _megatron_words(plan)
    if plan.clip is not None:
        script.append(f"accelerator.clip_grad_norm_(model.parameters(), {plan.clip:g}).")
    if plan.data == "zero3":
        words = ["fully_shard (FSDP2) of the model's layers, as in parallab.", *script]
        settings: dict[str, Any] = {"fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": True,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            "fsdp_cpu_ram_efficient_loading": False,
            "fsdp_offload_params": False,
            "fsdp_activation_checkpointing": plan.recompute == "full",
        }}  # fmt: skip
        if plan.tp > 1:
            settings["parallelism_config"] = {
                "parallelism_config_dp_replicate_size": 1,
                "parallelism_config_dp_shard_size": plan.dp,
                "parallelism_config_tp_size": plan.tp,
                "parallelism_config_cp_size": 1,
            }
            words.append('from_pretrained(..., tp_plan="auto") splits the layers.')
        return "FSDP", settings, words
    if plan.recompute == "full":
        script.append(checkpointing)
    if plan.data in ("zero1", "zero1-torch", "zero2"):
        settings = {"deepspeed_config": {"deepspeed_config_file": DEEPSPEED_FILE,
                                         "zero3_init_flag": False}}  # fmt: skip
        return "DEEPSPEED", settings, [f"Through DeepSpeed; it reads {DEEPSPEED_FILE}.", *script]
    return ("MULTI_GPU" if plan.devices > 1 else "NO"), {}, script


def _megatron(plan: Plan) -> dict[str, Any]:
    """Every setting whose default would change the plan is named."""
    return {
        "megatron_lm_tp_degree": plan.tp,
        "megatron_lm_pp_degree": plan.pp,
        "megatron_lm_num_micro_batches": plan.micro_batches,
        "megatron_lm_sequence_parallelism": plan.sequence_parallel,
        "megatron_lm_use_distributed_optimizer": _stage(plan) == 1,
        "megatron_lm_recompute_activations": plan.recompute == "full",
        "megatron_lm_recompute_granularity": "full" if plan.recompute == "full" else "selective",
        "megatron_lm_gradient_clipping": float(plan.clip or 0),
        "megatron_lm_context_parallel_size": 1,
    }


def _sequences(plan: Plan) -> str:
    return f"{plan.micro_batch} sequence{'s' if plan.micro_batch > 1 else ''}"


def _megatron_words(plan: Plan) -> list[str]:
    words = [
        "Through Megatron-LM, which must be installed and knows models like bert, gpt2, t5, llama.",
        f"Micro-batches of {_sequences(plan)} of {plan.seq:,} tokens.",
    ]
    if plan.recompute != "full":
        words.append("It always recomputes something: here the attention scores only.")
    return words


def _why_not_deepspeed(plan: Plan) -> str | None:
    if plan.strategy == "dp":
        return NO_DATA_PARALLEL
    if plan.pp > 1 and plan.tp > 1:
        return (
            "No configuration alone: DeepSpeed's pipeline takes the tensor axis from an mpu object "
            "of the script, such as Megatron-DeepSpeed's."
        )
    if plan.pp > 1 and plan.strategy != "mp" and plan.schedule != "1f1b":
        return (
            f"No equivalent: its pipeline is 1F1B, and this plan is {plan.schedule}. The same plan "
            "with schedule='1f1b' has one."
        )
    if plan.pp > 1 and _stage(plan) >= 2:
        return (
            f"No equivalent: DeepSpeed refuses ZeRO-{plan.zero} in a pipeline. The same plan with "
            "zero=1 has one."
        )
    return None


def _stage(plan: Plan) -> int:
    """The ZeRO stage, where there is a data axis to shard over."""
    return plan.zero if plan.dp > 1 else 0


def _deepspeed_config(plan: Plan) -> dict[str, Any]:
    config: dict[str, Any] = {
        "train_batch_size": plan.batch,
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.micro_batches,
        "zero_optimization": {"stage": _stage(plan)},
        "gradient_clipping": float(plan.clip or 0),  # 1.0 where nothing is said
        "optimizer": OPTIMIZERS[plan.optimizer],
    }
    if _stage(plan) and plan.optimizer == "sgd":
        config["zero_allow_untested_optimizer"] = True
    if plan.precision == "bf16":
        config["bf16"] = {"enabled": True}
    if plan.tp > 1:
        config["tensor_parallel"] = {"autotp_size": plan.tp}
    return config


def _yaml(config: Mapping[str, Any], indent: str = "") -> str:
    """Names and values, one level of groups; JSON's scalars are YAML's, and "no" stays a text."""
    lines = []
    for name, value in config.items():
        if isinstance(value, dict):
            lines.append(f"{indent}{name}:\n{_yaml(value, indent + '  ')}")
        else:
            lines.append(f"{indent}{name}: {json.dumps(value)}\n")
    return "".join(lines)
