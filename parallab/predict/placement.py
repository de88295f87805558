"""Where each pipeline stage is and what it holds, in words for the panel's log and the terminal."""

from __future__ import annotations

from parallab.models.spec import Model, count
from parallab.plan import Plan
from parallab.stages import rank_of_stage, stage_blocks, stage_count


def stage_lines(model: Model, plan: Plan) -> list[str]:
    """One line per stage, and one on what its two ends cost; none where there is no pipeline.

    >>> stage_lines(Model("mini"), Plan("dp+pp", dp=2, pp=2))[0]
    'stage 0 on ranks 0-1: embedding, blocks 0-3, 2.4 M parameters'
    """
    if plan.pp == 1:
        return []
    stages = stage_count(plan.pp, plan.schedule)
    lines = []
    for stage, blocks in enumerate(stage_blocks(model, stages)):
        parts = [_span("block", blocks[0], blocks[-1])]
        parameters = sum(count(model.block_shapes(block)) for block in blocks)
        if stage == 0:
            parts.insert(0, "embedding")
            parameters += _embedding(model)
        if stage == stages - 1:
            parts.append("head")
            parameters += _head(model)
        first = rank_of_stage(plan.schedule, stage, plan.pp) * plan.dp * plan.tp
        where = _span("rank", first, first + plan.dp * plan.tp - 1)
        split = f" over tp={plan.tp}" if plan.tp > 1 else ""
        lines.append(
            f"stage {stage} on {where}: {', '.join(parts)}, {_millions(parameters)}{split}"
        )
    lines.append(
        f"The embedding costs the first stage memory ({_millions(_embedding(model))}), "
        f"the head costs the last memory and time ({_millions(_head(model))})."
    )
    return lines


def _embedding(model: Model) -> int:
    """What the first stage holds beyond its blocks."""
    return count(model.embedding_shapes())


def _head(model: Model) -> int:
    """What the last stage holds beyond its blocks: a tied head has a copy of the embedding."""
    return count(model.head_shapes()) + (model.vocab * model.hidden if model.tied else 0)


def _span(name: str, first: int, last: int) -> str:
    return f"{name} {first}" if first == last else f"{name}s {first}-{last}"


def _millions(parameters: int) -> str:
    millions = parameters / 1e6
    return f"{millions:.{1 if millions >= 1 else 3}f} M parameters"
