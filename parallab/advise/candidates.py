"""Every plan that a model could be trained with on some hardware, and which of them fit.

Plans are searched by shape: degrees, ZeRO stage and schedule. A shape has variants that trade
memory for time: the micro-batch, recomputation, sequence parallelism. The fastest variant that
fits stands for its shape. Classic DataParallel and model parallelism in one piece are left out:
DDP and a pipeline are the same idea without the waiting.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from parallab.errors import PlanError
from parallab.hardware import Hardware
from parallab.models.spec import Model
from parallab.plan import Optimizer, Plan, Precision, Recompute, Schedule, why_not
from parallab.predict.time import StepTime, step_time, weights_of_ranks
from parallab.stages import stage_count

# The shortest bubbles for one stage a rank, two, and two with halved backward passes.
SCHEDULES: tuple[Schedule, ...] = ("1f1b", "interleaved", "zbv")
MICRO_BATCHES = (1, 2, 4, 8, 16)  # sequences in one
RECOMPUTE: tuple[Recompute, ...] = ("full", "none")


@dataclass(frozen=True)
class Task:
    """What is to be trained, however it is split: `batch` sequences of `seq` tokens a step."""

    model: Model
    batch: int
    seq: int
    precision: Precision
    optimizer: Optimizer


class Shape(NamedTuple):
    """How a model is split."""

    dp: int
    pp: int
    tp: int
    zero: int
    schedule: Schedule

    @property
    def strategy(self) -> str:
        """The catalogue's row for it."""
        split = {axis for axis in ("dp", "pp", "tp") if getattr(self, axis) > 1}
        if not split:
            return "single"
        if split == {"dp"}:
            return f"zero{self.zero}" if self.zero else "ddp"
        if len(split) == 1:
            return split.pop()
        return "dp+pp" if split == {"dp", "pp"} else "3d"

    @property
    def family(self) -> str:
        """What a person calls it; shapes of a family differ in degrees and schedule only."""
        axes = {"tp": "tensor", "pp": "pipeline", "dp": "data"}
        split = [name for axis, name in axes.items() if getattr(self, axis) > 1]
        sharded = f"ZeRO-{self.zero}" if self.zero else "DDP"
        if split == ["data"]:
            return sharded
        name = " + ".join(split) or "one GPU"
        return f"{name}, {sharded}" if self.dp > 1 else name


@dataclass(frozen=True)
class Candidate:
    """A plan, what it takes and how long: bytes of the rank with least to spare."""

    shape: Shape
    plan: Plan
    step: StepTime
    need_bytes: int
    room_bytes: int

    @property
    def lack(self) -> int:
        """Bytes that are missing; below 0 where it fits."""
        return self.need_bytes - self.room_bytes

    @property
    def fits(self) -> bool:
        return self.lack <= 0


@dataclass
class Found:
    """The outcome of a search.

    Attributes:
        fitting: the best of each shape that fits, best first.
        rejected: family -> the plan of it that needs least, where none fits.
        impossible: why other degrees cannot be, or do not help.
        plans: how many were considered.
    """

    fitting: list[Candidate] = field(default_factory=list)
    rejected: dict[str, Candidate] = field(default_factory=dict)
    impossible: list[str] = field(default_factory=list)
    plans: int = 0


# The peak of a pipeline rank, in bytes.
Need = Callable[[Plan, int], int]


def search(task: Task, hardware: Hardware, need: Need, limit: int = 10) -> Found:
    """The fastest plans that fit: the best of each shape, at least `limit` of them, and of each
    family.

    All plans stand in one queue, the fastest first, so that no peak is predicted that does not
    matter.

    Args:
        need: what a plan takes.
    """
    found, rejected = Found(), dict[str, list[_Queue]]()
    queues = [_Queue(task, hardware, shape) for shape in shapes(hardware.devices)]
    heap = [(queue.key, n, queue) for n, queue in enumerate(queues) if queue.plans]
    heapq.heapify(heap)
    while heap:
        _, n, queue = heapq.heappop(heap)
        families = {candidate.shape.family for candidate in found.fitting}
        if len(found.fitting) >= limit and queue.shape.family in families:
            continue
        best = queue.take(need) if queue.left else None
        if best is not None:
            found.fitting.append(best)
        elif queue.left:
            heapq.heappush(heap, (queue.key, n, queue))
        else:
            rejected.setdefault(queue.shape.family, []).append(queue)
    found.plans = sum(len(queue.plans) for queue in queues)
    found.impossible = limits(task, hardware.devices)
    found.fitting = _ranked(found.fitting)
    for family in set(rejected) - {candidate.shape.family for candidate in found.fitting}:
        found.rejected[family] = _nearest(rejected[family], need)
    return found


def _nearest(queues: list[_Queue], need: Need) -> Candidate:
    """Of shapes that do not fit, the plan that lacks least."""
    nearest = None
    for queue in sorted(queues, key=lambda queue: queue.lack):
        if nearest is not None and nearest.lack <= queue.lack:
            break  # the rest lack at least as much
        plan = _candidate(queue.task, queue.hardware, need, queue.shape, queue.plans[0])
        if nearest is None or plan.lack < nearest.lack:
            nearest = plan
    assert nearest is not None
    return nearest


class _Queue:
    """A shape's plans, the fastest first, without those that cannot fit.

    Attributes:
        plans: all of them, the one that needs least memory first.
        left: those that may yet fit, and their times.
    """

    def __init__(self, task: Task, hardware: Hardware, shape: Shape) -> None:
        self.task, self.hardware, self.shape = task, hardware, shape
        self.plans = variants(task, shape)
        self.rooms = _rooms(hardware, shape)
        self.left = [
            (step_time(task.model, plan, hardware), plan) for plan in self.plans if self.may(plan)
        ]
        self.left.sort(key=_pace, reverse=True)

    def may(self, plan: Plan) -> bool:
        return all(a <= b for a, b in zip(floors(self.task, plan), self.rooms, strict=True))

    @property
    def lack(self) -> int:
        """Bytes that are at least missing for the smallest plan."""
        least = floors(self.task, self.plans[0])
        return max(a - b for a, b in zip(least, self.rooms, strict=True))

    @property
    def key(self) -> tuple[int, int]:
        """Where it stands in the queue of all plans."""
        return _pace(self.left[-1]) if self.left else (0, 0)

    def take(self, need: Need) -> Candidate | None:
        """The next plan if it fits; else it goes, and what needs more memory for the same."""
        step, plan = self.left.pop()
        if need(plan, 0) <= self.rooms[0]:  # mostly the fullest rank
            candidate = _candidate(self.task, self.hardware, need, self.shape, plan, step)
            if candidate.fits:
                return candidate

        def larger(other: Plan) -> bool:
            same = (plan.recompute, plan.sequence_parallel)
            return (
                same == (other.recompute, other.sequence_parallel)
                and other.micro_batch >= plan.micro_batch
            )

        self.left = [entry for entry in self.left if not larger(entry[1])]
        return None


def _pace(entry: tuple[StepTime, Plan]) -> tuple[int, int]:
    """Fewer micro-batches start fewer kernels, which the estimate leaves out: they break a tie."""
    step, plan = entry
    return _rung(step, 0.005), plan.micro_batches


def _ranked(fitting: list[Candidate]) -> list[Candidate]:
    """The faster first; within 2 %, which no estimate can tell apart, the simpler."""
    best = min((candidate.step.seconds for candidate in fitting), default=1.0)

    def rank(candidate: Candidate) -> tuple[int, int, int, int]:
        shape = candidate.shape
        axes = sum(degree > 1 for degree in (shape.dp, shape.pp, shape.tp))
        return _rung(candidate.step, 0.02, best), axes, shape.zero, candidate.need_bytes

    return sorted(fitting, key=rank)


def _rung(step: StepTime, height: float, best: float = 1.0) -> int:
    """Times that differ by less than `height` of themselves, from the best up, count as one."""
    return math.floor(math.log(step.seconds / best) / math.log1p(height) + 1e-9)


def _candidate(
    task: Task,
    hardware: Hardware,
    need: Need,
    shape: Shape,
    plan: Plan,
    step: StepTime | None = None,
) -> Candidate:
    """A plan with the need of the rank that has least to spare."""
    rooms = _rooms(hardware, shape)
    ranks = unlike_ranks(task.model, plan.pp, plan.schedule)
    asked = ranks if len(set(rooms)) == 1 else range(plan.pp)
    tight = max(((need(plan, rank), rooms[rank]) for rank in asked), key=lambda at: at[0] - at[1])
    return Candidate(shape, plan, step or step_time(task.model, plan, hardware), *tight)


@functools.lru_cache(maxsize=1024)
def unlike_ranks(model: Model, pp: int, schedule: Schedule) -> tuple[int, ...]:
    """The pipeline ranks among which the fullest is: of those that hold equally many blocks the
    first and the last, between which the micro-batches in flight rise or fall.
    """
    alike: dict[tuple[int, int], list[int]] = {}
    for rank, holds in enumerate(weights_of_ranks(model, pp, schedule, 1)):
        alike.setdefault(holds, []).append(rank)
    return tuple(sorted({rank for ranks in alike.values() for rank in (ranks[0], ranks[-1])}))


def _rooms(hardware: Hardware, shape: Shape) -> list[int]:
    """What the fullest GPU of each pipeline rank has left for a plan."""
    size, rooms = shape.dp * shape.tp, hardware.room_bytes
    return [min(rooms[i : i + size]) for i in range(0, len(rooms), size)]


def floors(task: Task, plan: Plan) -> list[int]:
    """Bytes that each pipeline rank takes at least, quickly: what cannot fit need not be predicted.

    Model states as ZeRO shards them, and what its blocks keep for backward: the input alone where
    they are recomputed, otherwise what their matrix multiplications and attention read. With a
    single micro-batch gradients take the place of what was kept.
    """
    model, e, n = task.model, plan.element_bytes, plan.dp
    optimizer = (8 if plan.optimizer == "adamw" else 0) + (4 if e == 2 else 0)
    share = [n if plan.zero >= stage else 1 for stage in (1, 2, 3)]
    gradient = e / share[1]
    state = optimizer / share[0] + e / share[2]
    width = model.heads * model.head_dim + 2 * model.kv_heads * model.head_dim
    kept = model.hidden / (plan.tp if plan.sequence_parallel else 1)
    if plan.recompute == "none":
        sparse = model.experts_per_token * model.expert_ffn
        kept += (width + 2 * min(model.ffn, sparse or model.ffn)) / plan.tp
    tokens = plan.micro_batch * plan.seq
    together = max if plan.micro_batches == 1 else sum
    held = weights_of_ranks(model, plan.pp, plan.schedule, plan.tp)
    return [
        int(
            weights * state
            + together((weights * gradient, blocks * tokens * kept * e * _ahead(plan, rank)))
        )
        for rank, (weights, blocks) in enumerate(held)
    ]


def _ahead(plan: Plan, rank: int) -> float:
    """Micro-batches of which a pipeline rank keeps all its blocks' activations, at least."""
    m, hops = plan.micro_batches, plan.pp - 1 - rank
    match plan.schedule:
        case "1f1b":
            return min(m, hops + 1)
        case "interleaved" if m >= 2 * plan.pp:
            return plan.pp / 2 + hops
        case "zbv" if m >= 2 * plan.pp:
            return plan.pp - 1
    return 1


def smallest_need(task: Task, hardware: Hardware, need: Need, tries: int = 4) -> Candidate | None:
    """Of the shapes that share out the model most, the plan that takes least; None without any."""

    def order(shape: Shape) -> tuple[int, bool, int]:
        return -_parts(shape), shape.tp > hardware.gpus_per_node, -shape.tp

    found: list[Candidate] = []
    for shape in sorted(shapes(hardware.devices), key=order):
        plans = variants(task, shape)
        if plans:
            found.append(_candidate(task, hardware, need, shape, plans[0]))
            if found[-1].fits or len(found) >= tries:
                break
    return min(found, key=lambda candidate: candidate.need_bytes, default=None)


def _parts(shape: Shape) -> int:
    """Into how many parts the model states are cut."""
    return shape.pp * shape.tp * (shape.dp if shape.zero == 3 else 1)


def shapes(devices: int) -> Iterator[Shape]:
    """Every way to split over so many devices, simple ones first."""
    for tp in divisors(devices):
        for pp in divisors(devices // tp):
            dp = devices // tp // pp
            for zero in range(4) if dp > 1 else (0,):
                for schedule in SCHEDULES if pp > 1 else SCHEDULES[:1]:
                    yield Shape(dp, pp, tp, zero, schedule)


def variants(task: Task, shape: Shape) -> list[Plan]:
    """A shape's plans, the one that needs least memory first."""
    plans: list[Plan] = []
    if stage_count(shape.pp, shape.schedule) > task.model.layers:
        return plans
    for micro_batch in MICRO_BATCHES:
        micro_batches, rest = divmod(task.batch, shape.dp * micro_batch)
        if rest:
            continue
        for recompute in RECOMPUTE:
            # Halved backward passes are planned for passes of equal length.
            if recompute == "full" and shape.schedule == "zbv":
                continue
            for sequence_parallel in (True, False) if shape.tp > 1 else (False,):
                try:
                    plan = _plan(task, shape, micro_batches, recompute, sequence_parallel)
                    plan.check(task.model)
                except PlanError:
                    continue
                plans.append(plan)
    return plans


def limits(task: Task, devices: int) -> list[str]:
    """Why other degrees cannot be, or do not help: of each axis what is wrong with the first that
    is refused.
    """
    refused = []
    for axis in ("tp", "pp", "dp"):
        strategy = "ddp" if axis == "dp" else axis
        for degree in divisors(devices)[1:]:
            batch = task.batch if axis == "dp" else None
            choices: dict[str, Any] = {axis: degree, "batch": batch, "seq": task.seq}
            message = why_not(task.model, strategy=strategy, **choices)
            if message is not None:
                refused.append(message)
                break
    experts = task.model.experts
    if 0 < experts < max(divisors(devices)):
        refused.append(
            f"ZeRO-3 deals out the {experts} experts of a block whole: on more ranks than that the "
            "first hold them all, and the others none."
        )
    return refused


def _plan(
    task: Task, shape: Shape, micro_batches: int, recompute: Recompute, sequence_parallel: bool
) -> Plan:
    degrees = {axis: getattr(shape, axis) for axis in ("dp", "pp", "tp")}
    return Plan(
        shape.strategy, **degrees, batch=task.batch, seq=task.seq, micro_batches=micro_batches,
        schedule=shape.schedule, sequence_parallel=sequence_parallel, precision=task.precision,
        optimizer=task.optimizer, recompute=recompute, zero=shape.zero,
    )  # fmt: skip


def divisors(number: int) -> list[int]:
    """In ascending order."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return small + [number // n for n in reversed(small) if n * n != number]
