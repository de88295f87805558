"""Seconds of one step: an estimate, to compare plans with one another.

Each operation takes as long as its arithmetic or its memory traffic, whichever is longer (the
roofline of Williams et al., CACM 52(4), 2009). A collective takes a latency for each step of its
ring and its wire bytes over the bandwidth (alpha-beta: Thakur et al., IJHPCA 19(1), 2005). All
speeds are data-sheet values times an `Efficiency`. Left out: launching kernels, loading data.

What overlaps is assumed as follows. Tensor-parallel collectives are waited for. Gradients and
ZeRO's shards travel while the GPU computes, up to the share `Efficiency.overlap`: those of DDP and
ZeRO-1 in the last micro-batch's backward pass, of ZeRO-2 in all of them, of ZeRO-3 in all passes.
ZeRO-1 and 2 gather new weights after the optimizer, and wait. A pipeline waits for what it passes
on while it fills and drains, and otherwise only where passing on takes longer than computing.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from parallab.datasheets import Gpu, check_number
from parallab.hardware import Hardware, Ring
from parallab.models.spec import Model, count
from parallab.plan import Plan, Schedule
from parallab.predict.bubble import bubble
from parallab.predict.communication import wire_bytes
from parallab.predict.parts import blocks_of_stage, held_stages, held_units, sliced
from parallab.stages import stage_blocks, stage_count

# A backward pass multiplies twice where a forward pass multiplies once: by the weights and by the
# inputs (PaLM, arXiv:2204.02311, appendix B: 2N forward, 4N backward per token).
BACKWARD = 2
# An update reads weight, gradient and moments and writes weight and moments, in fp32: 28 bytes with
# two moments, 12 with none. In bf16 the gradient is half as long, and two bytes more are written.
_OPTIMIZER_BYTES = {"adamw": 28, "sgd": 12}
_BUCKET_BYTES = 25 * 2**20  # of DDP, whose all-reduces are that large
_TREE_BANDWIDTH = 0.92  # what NCCL counts with for a tree, as a part of a ring's


@dataclass(frozen=True)
class Efficiency:
    """How much of the data sheets' speeds a training step gets.

    Attributes:
        matmul: of the FLOP/s. 0.6 puts Llama-3.1-8B with FSDP and full recomputation on 8 and 128
            H100 within a quarter of what torchtitan published with selective recomputation, and
            nearer to its compiled runs (benchmarks/llama3_h100_202412_torchtitan.md). The best
            shapes alone reach 0.8 (Bekman, "Machine Learning Engineering", maximum achievable
            matmul FLOPS).
        memory: of the memory bandwidth; about what STREAM-like kernels reach.
        link: of the links' bandwidth; nccl-tests report 360 GB/s of NVLink 4's 450 within a node.
        overlap: the part of gradients and shards that may travel during computation. The first
            block's gather and the last block's reduction have nothing to hide behind.
    """

    matmul: float = 0.6
    memory: float = 0.7
    link: float = 0.8
    overlap: float = 0.9

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            check_number(name, value, 0 if name == "overlap" else 0.01, 1)


@dataclass(frozen=True)
class StepTime:
    """The estimated seconds of one step, part by part.

    Attributes:
        tokens: of the global batch.
        devices: GPUs that share them.
        model_flops: what the batch needs: 6 for each weight that multiplies a token, and 12 x
            layers x width x seq for attention (PaLM, arXiv:2204.02311, appendix B).
        peak_flops: of all GPUs together.
        compute_seconds: forward and backward passes, the mean of a pipeline's ranks.
        recompute_seconds: forward passes that are done again, the mean as well.
        unequal_seconds: what the slowest pipeline rank takes more than the mean; the others wait.
        bubble_seconds: waiting in the pipeline while it fills and drains.
        exposed_seconds: axis -> communication that is waited for.
        hidden_seconds: communication that overlaps; not part of the sum.
        optimizer_seconds: reading and writing its states.
    """

    tokens: int
    devices: int
    model_flops: float
    peak_flops: float
    compute_seconds: float
    recompute_seconds: float
    unequal_seconds: float
    bubble_seconds: float
    exposed_seconds: dict[str, float]
    hidden_seconds: float
    optimizer_seconds: float

    @property
    def seconds(self) -> float:
        """The whole step."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        """What the step consists of, in words -> seconds; adds up to `seconds`."""
        return {
            "computing": self.compute_seconds,
            "recomputing": self.recompute_seconds,
            "unequal stages": self.unequal_seconds,
            "pipeline bubble": self.bubble_seconds,
            **{f"{axis} communication": s for axis, s in self.exposed_seconds.items()},
            "optimizer": self.optimizer_seconds,
        }

    @property
    def tokens_per_second(self) -> float:
        """Over all GPUs."""
        return self.tokens / self.seconds

    @property
    def utilization(self) -> float:
        """Model FLOP/s of the peak (MFU; recomputation does not count)."""
        return self.model_flops / self.seconds / self.peak_flops

    def to_dict(self) -> dict[str, Any]:
        """Every field and what follows from them, ready for JSON."""
        return {
            **asdict(self),
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "utilization": self.utilization,
        }


def step_time(
    model: Model, plan: Plan, hardware: Hardware, efficiency: Efficiency | None = None
) -> StepTime:
    """The estimated time of one step of a plan, rank 0 on the hardware's first GPU.

    Returns:
        That of the slowest pipeline rank; ranks along the other axes do the same work.
    """
    speed = Speed(hardware.gpu, plan.precision, efficiency or Efficiency())
    works = _work_of_ranks(model, plan, hardware, speed)
    work, mean = max(works, key=lambda work: work.seconds), _mean(works)
    m, idle = plan.micro_batches, bubble(plan)
    late, passed_on = _pipeline_axis(model, plan, hardware, speed, work)
    waited, overlapped = _data_axis(model, plan, hardware, speed, work)
    weights, _ = max(weights_of_ranks(model, plan.pp, plan.schedule, plan.tp))
    stepped = weights / plan.dp if plan.data.startswith("zero") else weights
    return StepTime(
        tokens=plan.batch * plan.seq,
        devices=plan.devices,
        model_flops=model_flops(model, plan.seq) * plan.batch * plan.seq,
        peak_flops=hardware.gpu.flops(plan.precision) * plan.devices,
        compute_seconds=m * (1 + BACKWARD) * mean.forward,
        recompute_seconds=m * mean.again,
        unequal_seconds=m * (work.seconds - mean.seconds),
        bubble_seconds=m * work.seconds * idle.idle_of_ideal if idle else 0.0,
        exposed_seconds={"tp": m * mean.tensor, "pp": late, "dp": waited},
        hidden_seconds=passed_on + overlapped,
        optimizer_seconds=speed.seconds(0, stepped * _OPTIMIZER_BYTES[plan.optimizer]),
    )


@dataclass(frozen=True)
class Speed:
    """How fast a kind of GPU computes in some precision."""

    gpu: Gpu
    precision: str
    efficiency: Efficiency

    def seconds(self, flops: float, moved_bytes: float) -> float:
        """Of one operation: the roofline."""
        part = self.efficiency
        computing = flops / (self.gpu.flops(self.precision) * part.matmul)
        return max(computing, moved_bytes / (self.gpu.bytes_per_second * part.memory))

    def collective(self, op: str, payload_bytes: float, ring: Ring, calls: float = 1) -> float:
        """Of all calls of one collective together.

        An all-reduce goes around its ring twice, or up and down a tree where that is faster, as it
        is for many ranks (NCCL chooses by the same formulas: src/graph/tuning.cc, version 2.2x).
        """
        bandwidth = ring.bytes_per_second * self.efficiency.link
        wire = wire_bytes(op, int(payload_bytes), ring.size)
        if op != "all_reduce":
            return calls * ring.latency_seconds + wire / bandwidth
        return min(
            calls * 2 * ring.latency_seconds + wire / bandwidth,
            calls * 2 * ring.tree_seconds + 2 * payload_bytes / (_TREE_BANDWIDTH * bandwidth),
        )


@dataclass(frozen=True)
class _Work:
    """One micro-batch on one rank: seconds of its forward passes, of repeating them, of waiting for
    the tensor axis in all passes.
    """

    forward: float
    again: float
    tensor: float

    @property
    def seconds(self) -> float:
        return (1 + BACKWARD) * self.forward + self.again + self.tensor


def _mean(works: Mapping[_Work, int]) -> _Work:
    """Of so many ranks each."""
    ranks = sum(works.values())
    return _Work(*(
        sum(n * getattr(work, part.name) for work, n in works.items()) / ranks
        for part in fields(_Work)
    ))  # fmt: skip


def _work_of_ranks(
    model: Model, plan: Plan, hardware: Hardware, speed: Speed
) -> Mapping[_Work, int]:
    """The work of pipeline ranks -> how many of them have it."""
    tokens = plan.micro_batch * plan.seq
    kinds = _block_seconds(model, tokens, plan.seq, plan.tp, plan.sequence_parallel, speed)
    embedding, head = _ends_seconds(model, tokens, plan.tp, speed)
    in_block, at_end = _tensor_axis(model, plan, hardware, speed)
    again = plan.recompute == "full"
    works = Counter[_Work]()
    for (counts, first, last), ranks in _loads(model, plan.pp, plan.schedule).items():
        blocks = sum(n * seconds for n, seconds in zip(counts, kinds, strict=True))
        work = _Work(
            forward=blocks + embedding * first + head * last,
            again=blocks if again else 0.0,
            tensor=in_block * sum(counts) + at_end * (first + last),
        )
        works[work] += ranks
    return works


@functools.lru_cache(maxsize=4096)
def _block_seconds(
    model: Model, tokens: int, seq: int, tp: int, split_norms: bool, speed: Speed
) -> list[float]:
    """Forward pass of one block and micro-batch on one rank, for each kind of block.

    Attention counts every pair of positions, as PaLM's formula does, though causal kernels leave
    out half of them: they also run at about half the rate of a plain multiplication (73 % of the
    peak at best on A100, 35 % on H100: arXiv:2307.08691, arXiv:2407.08608).
    """
    e = 4 if speed.precision == "fp32" else 2
    width = model.heads * (model.head_dim + model.value_dim) // tp
    keys = model.kv_heads * (model.head_dim + model.value_dim) // tp
    attention = speed.seconds(2 * tokens * seq * width, e * tokens * (width + keys))
    kinds = []
    for layer in model.block_kinds():
        moved = e * tokens * _moved_elements(model, layer, tp, split_norms)
        total = attention + speed.seconds(0, moved)
        for name, shape in model.block_shapes(layer).items():
            if len(shape) > 1:  # norms and biases are among what is moved
                *experts, out, into = sliced(name, shape, tp, 0)
                rows = tokens * model.experts_per_token if experts else tokens
                moved = e * (math.prod([*experts, out, into]) + rows * (out + into))
                total += speed.seconds(2 * rows * out * into, moved)
        kinds.append(total)
    return kinds


def _moved_elements(model: Model, layer: int, tp: int, split_norms: bool) -> float:
    """What one token's elementwise operations read and write in one block's forward pass.

    Each norm 2h, each residual sum 3h; rotary positions read and write queries and keys; the
    activation 2f, or 5f where it is multiplied by the gate.
    """
    norms = model.block_norms * 2 * model.hidden + 2 * 3 * model.hidden
    rotated = 2 * (model.heads + model.kv_heads) * model.rotary_dim
    sparse = model.is_sparse(layer)
    routed = model.experts_per_token * model.expert_ffn + model.shared_ffn
    activation = (5 if model.mlp == "gated" else 2) * (routed if sparse else model.ffn)
    return norms / (tp if split_norms else 1) + (rotated + activation) / tp


def _ends_seconds(model: Model, tokens: int, tp: int, speed: Speed) -> tuple[float, float]:
    """Forward pass of the embedding, and of the head with the loss.

    The loss is computed in fp32: logits are read, and three tensors of their size written or read.
    """
    e = 4 if speed.precision == "fp32" else 2
    h, v = model.hidden, model.vocab // tp
    embedding = speed.seconds(0, e * tokens * 2 * h)
    multiplication = speed.seconds(2 * tokens * h * v, e * (h * v + tokens * (h + v)))
    return embedding, multiplication + speed.seconds(0, tokens * ((e + 12) * v + e * 2 * h))


def _tensor_axis(model: Model, plan: Plan, hardware: Hardware, speed: Speed) -> tuple[float, float]:
    """Waiting for the tensor axis in all passes of one micro-batch: per block, and at either end.

    The collectives are those of `predict.communication`.
    """
    if plan.tp == 1:
        return 0.0, 0.0
    ring = hardware.ring(1, plan.tp)
    payload = plan.micro_batch * plan.seq * model.hidden * plan.element_bytes
    again = plan.recompute == "full"
    if not plan.sequence_parallel:
        each = speed.collective("all_reduce", payload, ring)
        return (5 if again else 4) * each, each
    gather = speed.collective("all_gather", payload, ring)
    scatter = speed.collective("reduce_scatter", payload, ring)
    return (6 if again else 4) * gather + (5 if again else 4) * scatter, gather + scatter


def _pipeline_axis(
    model: Model, plan: Plan, hardware: Hardware, speed: Speed, work: _Work
) -> tuple[float, float]:
    """Seconds that the pipeline waits for what it passes on, and seconds that it does not."""
    if plan.pp == 1:
        return 0.0, 0.0
    link = hardware.hop(plan.tp * plan.dp, plan.pp)
    boundary = plan.micro_batch * plan.seq * model.hidden * plan.element_bytes
    if plan.sequence_parallel:
        boundary //= plan.tp
    each = link.latency_seconds + boundary / (link.bytes_per_second * speed.efficiency.link)
    stages = stage_count(plan.pp, plan.schedule)
    passes = 2 * plan.micro_batches * stages // plan.pp
    behind = work.forward * plan.pp / stages  # the shorter pass, which hides less
    slower = passes * max(0.0, each - behind)
    return 2 * (stages - 1) * each + slower, passes * min(each, behind)


def _data_axis(
    model: Model, plan: Plan, hardware: Hardware, speed: Speed, work: _Work
) -> tuple[float, float]:
    """Seconds that a rank waits for the data axis, and seconds that it does not.

    The payloads are those of `predict.communication`, without padding; one collective for each
    block, and one for the ends.
    """
    if plan.dp == 1:
        return 0.0, 0.0
    ring = hardware.ring(plan.tp, plan.dp)
    weights, blocks = max(weights_of_ranks(model, plan.pp, plan.schedule, plan.tp))
    payload, m = weights * plan.element_bytes, plan.micro_batches
    backward = BACKWARD * work.forward + work.again

    def seconds(op: str, times: int = 1, calls: int = blocks + 1) -> float:
        return speed.collective(op, times * payload, ring, times * calls)

    match plan.data:
        case "replicate" | "zero1-torch":
            buckets = blocks + 1 if plan.pp > 1 else math.ceil(payload / _BUCKET_BYTES)
            early, behind = seconds("all_reduce", calls=buckets), backward
            late = seconds("broadcast") if plan.data == "zero1-torch" else 0.0
        case "zero1":
            early, behind, late = seconds("reduce_scatter"), backward, seconds("all_gather")
        case "zero2":
            early, behind = seconds("reduce_scatter", m), m * backward
            late = seconds("all_gather")
        case "zero3":
            gathers, reductions = (m + 1, 1) if plan.pp > 1 else (2 * m, m)
            early = seconds("all_gather", gathers) + seconds("reduce_scatter", reductions)
            behind, late = m * (work.forward + backward), 0.0
        case _:  # DataParallel: all wait while rank 0 sends and receives
            logits = plan.batch * plan.seq * model.vocab * plan.element_bytes
            early, behind = 0.0, 0.0
            late = 2 * seconds("broadcast", m) + 2 * speed.collective("all_gather", logits, ring)
    hidden = min(speed.efficiency.overlap * early, behind)
    return early - hidden + late, hidden


@functools.lru_cache(maxsize=256)
def model_flops(model: Model, seq: int) -> float:
    """Operations that one token needs, forward and backward, nothing done twice."""
    weights = float(model.vocab * model.hidden)
    for layer, layers in model.block_kinds().items():
        for shape in model.block_shapes(layer).values():
            if len(shape) > 1:
                used = model.experts_per_token / model.experts if len(shape) == 3 else 1
                weights += layers * math.prod(shape) * used
    attention = 2 * model.layers * model.heads * (model.head_dim + model.value_dim) * seq
    return (1 + BACKWARD) * (2 * weights + attention)


@functools.lru_cache(maxsize=256)
def _loads(
    model: Model, pp: int, schedule: Schedule
) -> Mapping[tuple[tuple[int, ...], bool, bool], int]:
    """What pipeline ranks hold (blocks of each kind, embedding or not, head or not) -> how many."""
    plan = Plan("3d", dp=1, pp=pp, tp=1, schedule=schedule)
    stages = stage_count(pp, schedule)
    parts = stage_blocks(model, stages)
    kinds = [model.is_sparse(layer) for layer in model.block_kinds()]
    loads = Counter[tuple[tuple[int, ...], bool, bool]]()
    for held in (held_stages(plan, rank) for rank in range(pp)):
        layers = [model.is_sparse(layer) for stage in held for layer in parts[stage]]
        loads[tuple(map(layers.count, kinds)), 0 in held, stages - 1 in held] += 1
    return loads


@functools.lru_cache(maxsize=1024)
def weights_of_ranks(model: Model, pp: int, schedule: Schedule, tp: int) -> list[tuple[int, int]]:
    """Of each pipeline rank, the elements of its weights before the data axis shards them, and its
    blocks.
    """
    plan = Plan("3d", dp=1, pp=pp, tp=tp, schedule=schedule)
    return [
        (
            sum(map(count, held_units(model, plan, rank))),
            sum(blocks_of_stage(model, plan, stage) for stage in held_stages(plan, rank)),
        )
        for rank in range(pp)
    ]
