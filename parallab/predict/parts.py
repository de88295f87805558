"""Which tensors one rank holds: the model cut by the pipeline and the tensor axis."""

from __future__ import annotations

import functools

from parallab.plan import Plan
from parallab.spec import Model, Shape
from parallab.stages import stage_blocks, stage_count, stage_indices

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


def blocks_of_stage(model: Model, plan: Plan, stage: int) -> int:
    """How many blocks a stage holds."""
    return len(_blocks(model, stage_count(plan.pp, plan.schedule))[stage])


@functools.lru_cache(maxsize=256)
def _blocks(model: Model, stages: int) -> list[range]:
    return stage_blocks(model, stages)


def _stage_units(model: Model, plan: Plan, stage: int, tp: int) -> list[Unit]:
    last = stage_count(plan.pp, plan.schedule) - 1
    units: list[Unit] = []
    apart: Unit = {}
    if stage == 0:
        units.append(model.embedding_shapes())
    blocks = _blocks(model, last + 1)[stage]
    units += [model.block_shapes(layer) for layer in blocks]
    if stage == last:
        head = model.head_shapes()
        if model.tied and last:
            head[OUTPUT] = (model.vocab, model.hidden)
        units.append(head)
    if model.tied and last:
        for unit in units:
            for name in (EMBEDDING, OUTPUT):
                if name in unit:
                    apart = {EMBEDDING: unit.pop(name)}
    return [
        {name: sliced(name, shape, plan.tp, tp) for name, shape in unit.items()}
        for unit in ([apart] if apart else []) + units
    ]


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
