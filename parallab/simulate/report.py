"""The simulated Report."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import parallab
from parallab.errors import ModelError, PlanError
from parallab.models.spec import Model
from parallab.plan import Plan, check_both
from parallab.predict.parts import blocks_of_stage, held_stages
from parallab.predict.ranks import kinds_of_ranks
from parallab.report import Rank, Report, Step
from parallab.simulate.crew import simulate_ranks

Progress = Callable[[int, int, str], None]


def simulate(
    model: Model,
    plan: Plan,
    *,
    ranks: Iterable[int] | None = None,
    progress: Progress | None = None,
) -> Report:
    """What each kind of rank holds and sends in a step, from the code that trains.

    Nothing is computed, so the model may be larger than any machine and the world have any number
    of ranks; what has no time has none in the Report, and no loss. The work is done by processes of
    their own: nothing of this one is touched, and it stays free for other things. They stay for a
    while, so that the next simulation begins at once.

    Args:
        ranks: those to simulate, by number; one of each kind unless given.
        progress: called every moment in between, with the number of ranks that are done, of all
            that are simulated, and words. What it raises ends the simulation.

    Returns:
        A Report with one step a rank. `environment["represents"]` says for how many ranks each one
        stands, by its number as a text; `environment["extrapolated"]` which follow from fewer
        blocks than they have (`parallab.simulate.layers`).

    Raises:
        PlanError: a plan that does not fit the model, or a rank that it does not have.
        ModelError: a model that parallab cannot train.
        RankError: the simulation of a rank failed.
    """
    check_both(model, plan)
    if model.why_not_trainable:
        raise ModelError(model.why_not_trainable)
    represents = kinds_of_ranks(model, plan) if ranks is None else _asked_for(ranks, plan)
    found = simulate_ranks(model, plan, list(represents), progress or _silent)
    return Report(
        source="simulated",
        model=model,
        plan=plan,
        environment={
            "parallab": parallab.__version__,
            "torch": found[0]["torch"],
            "backend": "fake",
            "hosts": [],
            "represents": {str(rank): number for rank, number in represents.items()},
            "extrapolated": {
                str(rank): _in_words(model, plan, rank, answer["sizes"])
                for rank, answer in zip(represents, found, strict=True)
                if answer["sizes"]
            },
        },
        ranks=[
            Rank(rank, plan.coordinates(rank), "fake", "", [Step.from_dict(answer["step"])])
            for rank, answer in zip(represents, found, strict=True)
        ],
    )


def _silent(_done: int, _total: int, _words: str) -> None:
    pass


def _asked_for(ranks: object, plan: Plan) -> dict[int, int]:
    asked: set[int] = set()
    if not isinstance(ranks, Iterable):
        raise PlanError(f"ranks={ranks!r} must be a list of ranks, such as [0, 3].")
    for rank in ranks:
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < plan.devices:
            raise PlanError(
                f"There is no rank {rank!r}: the plan has {plan.devices} ranks, which count from 0."
            )
        asked.add(rank)
    if not asked:
        raise PlanError("No rank was named; leave ranks out to simulate one of each kind.")
    return dict.fromkeys(sorted(asked), 1)


def _in_words(model: Model, plan: Plan, rank: int, sizes: list[int]) -> str:
    blocks = [
        blocks_of_stage(model, plan, stage)
        for stage in held_stages(plan, plan.coordinates(rank)["pp"])
    ]
    first, second, check = sizes
    return (
        f"stages of {' and '.join(map(str, blocks))} blocks from {first} and {second}, "
        f"exact to the byte for {check}"
    )
