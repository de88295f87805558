"""Which layers each pipeline stage holds, and on which rank each stage lives. Pure numbers."""

from __future__ import annotations

from parallab.models.spec import Model, count

ONE_STAGE_A_RANK = ("gpipe", "1f1b")
V_SHAPED = ("zbv", "dualpipev")
ZERO_BUBBLE = ("zb", "zbv", "dualpipev")
SCHEDULES = ("gpipe", "1f1b", "loopedbfs", "interleaved", "zb", "zbv", "dualpipev")


def stages_per_rank(schedule: str) -> int:
    """Stages that one rank holds: 1, or 2 where rounds or a V shorten the bubble."""
    return 1 if schedule in ONE_STAGE_A_RANK else 2


def stage_count(pp: int, schedule: str) -> int:
    """Stages over all pipeline ranks; one where there is no pipeline."""
    return pp * stages_per_rank(schedule) if pp > 1 else 1


def stage_indices(schedule: str, rank: int, ranks: int, stages: int) -> list[int]:
    """The stages of one pipeline rank, in the order in which a micro-batch meets them.

    One for the plain schedules. A V puts the first and the last stage on rank 0, so that the loss
    is computed there; a loop deals stages out round by round.
    """
    if stages == ranks:
        return [rank]
    if schedule in V_SHAPED:
        return [rank, 2 * ranks - 1 - rank]
    return list(range(rank, stages, ranks))


def rank_of_stage(schedule: str, stage: int, ranks: int) -> int:
    """The pipeline rank that holds a stage."""
    if schedule in V_SHAPED and stage >= ranks:
        return 2 * ranks - 1 - stage
    return stage % ranks


def stage_blocks(model: Model, stages: int) -> list[range]:
    """The blocks of each stage: consecutive, at least one each, the slowest as fast as can be.

    A block costs as much time as it has weights (two operations a weight and token; attention's
    own part is the same in every block). The last stage also computes the head, the first also
    holds the embedding, which costs memory but no time: where the vocabulary is large, the last
    stage gets fewer blocks and the first stage is the largest.
    """
    assert 1 <= stages <= model.layers
    if stages == 1:
        return [range(model.layers)]
    block, head = count(model.block_shapes(model.layers - 1)), model.vocab * model.hidden

    def slowest(last: int) -> tuple[float, int]:
        """Time of the slowest stage; ties go to more blocks in the last."""
        others = -(-(model.layers - last) // (stages - 1))
        return max(others * block, last * block + head), -last

    # The last stage's share is what balances; the others split the rest evenly.
    last = min(range(1, model.layers - stages + 2), key=slowest)
    shares = [*_even(model.layers - last, stages - 1), last]
    starts = [sum(shares[:i]) for i in range(stages)]
    return [range(start, start + share) for start, share in zip(starts, shares, strict=True)]


def _even(blocks: int, stages: int) -> list[int]:
    """Blocks over stages; what is left over goes to the later ones, away from the embedding."""
    each, more = divmod(blocks, stages)
    return [each + (i >= stages - more) for i in range(stages)]
