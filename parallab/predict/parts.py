"""Which tensors one rank holds: the model cut by the pipeline and the tensor axis."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby

from parallab.models.spec import Model, Shape
from parallab.plan import Plan
from parallab.stages import rank_of_stage, stage_blocks, stage_count, stage_indices

EMBEDDING, OUTPUT = "embedding.tokens.weight", "head.output.weight"
_COLUMNS = ("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up")
_ROWS = ("attention.out.weight", "mlp.down.weight")

Unit = dict[str, Shape]


@functools.lru_cache(maxsize=1024)
def held_units(model: Model, plan: Plan, pp: int = 0, tp: int = 0) -> tuple[Unit, ...]:
    """The units of one rank's stages, before the data axis shards them.

    Args:
        pp, tp: the rank's place on the two axes.

    Returns:
        In the order of its stages: embedding, blocks, head, each name -> shape on this rank. An
        embedding that the head shares is a unit of its own where the two are on different stages.
    """
    units = []
    for index in held_stages(plan, pp):
        units += _stage_units(model, plan, index, tp)
    return tuple(unit for unit in units if unit)


def held_stages(plan: Plan, pp: int) -> list[int]:
    """The stages of one pipeline rank."""
    return stage_indices(plan.schedule, pp, plan.pp, stage_count(plan.pp, plan.schedule))


def blocks_of(model: Model, plan: Plan, stage: int) -> range:
    """The blocks of a stage."""
    return _blocks(model, stage_count(plan.pp, plan.schedule))[stage]


def blocks_of_stage(model: Model, plan: Plan, stage: int) -> int:
    """How many blocks a stage holds."""
    return len(blocks_of(model, plan, stage))


@dataclass(frozen=True)
class Part:
    """What a stage holds, in numbers.

    Attributes:
        runs: kinds of blocks in order: whether a mixture of experts, and how many in a row.
        first, last: whether it is the pipeline's first stage (the embedding), or last (the head).
        receives, sends: whether the stage before, and behind, is on another rank.
    """

    runs: tuple[tuple[bool, int], ...]
    first: bool
    last: bool
    receives: bool
    sends: bool

    @property
    def blocks(self) -> int:
        """Blocks in all."""
        return sum(number for _, number in self.runs)


def parts_of(model: Model, plan: Plan, pp: int) -> tuple[Part, ...]:
    """What the stages of one pipeline rank hold."""
    return _parts(model, plan.pp, plan.schedule)[pp]


@functools.lru_cache(maxsize=256)
def alike(model: Model, ranks: int, schedule: str) -> tuple[int, ...]:
    """For each pipeline rank, the first one that holds as much."""
    parts = _parts(model, ranks, schedule)
    return tuple(parts.index(part) for part in parts)


@functools.lru_cache(maxsize=256)
def _parts(model: Model, ranks: int, schedule: str) -> list[tuple[Part, ...]]:
    stages = stage_count(ranks, schedule)
    where = [rank_of_stage(schedule, index, ranks) for index in range(stages)]
    parts = []
    for index, blocks in enumerate(_blocks(model, stages)):
        kinds = groupby(model.is_sparse(layer) for layer in blocks)
        parts.append(
            Part(
                tuple((kind, len(list(run))) for kind, run in kinds),
                index == 0,
                index == stages - 1,
                index > 0 and where[index - 1] != where[index],
                index < stages - 1 and where[index + 1] != where[index],
            )
        )
    held = [stage_indices(schedule, rank, ranks, stages) for rank in range(ranks)]
    return [tuple(parts[index] for index in indices) for indices in held]


@functools.lru_cache(maxsize=256)
def _blocks(model: Model, stages: int) -> list[range]:
    return stage_blocks(model, stages)


def _stage_units(model: Model, plan: Plan, stage: int, tp: int) -> list[Unit]:
    last = stage_count(plan.pp, plan.schedule) - 1
    embedding = model.embedding_shapes() if stage == 0 else {}
    head = model.head_shapes() if stage == last else {}
    apart: Unit = {}
    if model.tied and last and stage in (0, last):
        embedding.pop(EMBEDDING, None)
        apart = {EMBEDDING: (model.vocab, model.hidden)}
    blocks = [
        held_block(model, model.is_sparse(layer), plan.tp, tp)
        for layer in blocks_of(model, plan, stage)
    ]
    ends = [_sliced(unit, plan.tp, tp) for unit in (apart, embedding, head)]
    return [*ends[:2], *blocks, ends[2]]


@functools.lru_cache(maxsize=1024)
def held_block(model: Model, sparse: bool, ranks: int, rank: int) -> Unit:
    """A block on one tensor-parallel rank; all blocks of a kind are the same object."""
    layer = next(layer for layer in model.block_kinds() if model.is_sparse(layer) == sparse)
    return _sliced(model.block_shapes(layer), ranks, rank)


def counted(units: Iterable[Unit]) -> list[tuple[Unit, int]]:
    """The units that are different objects, and how often each occurs."""
    found: dict[int, list[Unit]] = {}
    for unit in units:
        found.setdefault(id(unit), []).append(unit)
    return [(alike[0], len(alike)) for alike in found.values()]


def each(units: Iterable[Unit], of: Callable[[Unit], int]) -> list[int]:
    """A number for every unit, worked out once for each object."""
    known: dict[int, int] = {}
    found = []
    for unit in units:
        if id(unit) not in known:
            known[id(unit)] = of(unit)
        found.append(known[id(unit)])
    return found


def _sliced(unit: Unit, ranks: int, rank: int) -> Unit:
    return {name: sliced(name, shape, ranks, rank) for name, shape in unit.items()}


def sliced(name: str, shape: Shape, ranks: int, rank: int) -> Shape:
    """A tensor's shape on one tensor-parallel rank: columns, rows and vocabulary are split.

    Parts are dealt out as `torch.chunk` does: of 257 rows, two ranks hold 129 and 128.
    """
    split = next((0 for column in _COLUMNS if column + "." in name), None)
    if name in (EMBEDDING, OUTPUT):
        split = 0
    elif name.endswith(_ROWS):
        split = 1
    if split is None or ranks == 1:
        return shape
    chunk = -(-shape[split] // ranks)
    mine = max(0, min(chunk, shape[split] - rank * chunk))
    return (*shape[:split], mine, *shape[split + 1 :])
