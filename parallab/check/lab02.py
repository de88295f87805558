"""The exercises of 02_zero: what shrinks, and what it costs."""

from __future__ import annotations

from typing import Any

from parallab.check.exercise import Exercise, Verdict, right, wrong
from parallab.check.functions import Returned, function_on
from parallab.check.judges import MIB, Slip, choice, number, peak_at_most, plan_for
from parallab.check.measure import measured
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.report import Report

LAB = "02_zero"
RANKS = 4
LIMIT_BYTES = 60 * MIB
_MODEL = Model("micro")
_KEEP: dict[str, Any] = {"batch": 8, "seq": 64}
_ELEMENTS = 10


def _optimizer_bytes(strategy: str) -> int:
    return _report(strategy).ranks[0].steps[-1].memory.states["optimizer"]


def _report(strategy: str) -> Report:
    return measured(_MODEL, Plan(strategy, devices=RANKS))


def _sends_no_more_than_ddp(report: Report) -> tuple[bool, str]:
    ddp = measured(report.model, Plan("ddp", devices=RANKS, **_KEEP), 3)
    # Padding to a multiple of the ranks is not what the question is about.
    holds = report.wire_bytes <= 1.01 * ddp.wire_bytes
    return holds, (
        f"a rank sent {report.wire_bytes / MIB:.1f} MiB in a step, and of ddp "
        f"{ddp.wire_bytes / MIB:.1f} MiB"
    )


def _largest() -> str:
    held = _report("zero3").ranks[0].peak.at_peak
    return max(held, key=lambda category: held[category])


def _about(category: str) -> str:
    memory = _report("zero3").ranks[0].peak
    size, peak = memory.at_peak[category], memory.peak_bytes
    comes = "ZeRO does not split what comes from the batch."
    return (
        f"At the peak of rank 0, {category} are {size / MIB:.1f} of {peak / MIB:.1f} MiB. "
        f"{comes if category == _largest() else 'Something else is larger.'}"
    )


def _judge_shares(returned: list[Returned]) -> Verdict:
    size = -(-_ELEMENTS // RANKS)
    covered: list[int] = []
    for rank, one in enumerate(returned):
        value = one.value
        if not (isinstance(value, list) and len(value) == 2 and all(_is_place(v) for v in value)):
            return wrong(f"Rank {rank} returned {value!r:.60}; return two whole numbers.")
        start, stop = value
        if stop - start > size:
            return wrong(
                f"Rank {rank} returned {start} to {stop}, {stop - start} elements; equal shares of "
                f"{_ELEMENTS} over {RANKS} ranks have at most {size}."
            )
        covered += range(start, stop)
    if covered != list(range(_ELEMENTS)):
        shares = ", ".join(str(tuple(one.value)) for one in returned)
        return wrong(f"The shares {shares} do not hold elements 0 to {_ELEMENTS - 1} once each.")
    shares = ", ".join(f"{one.value[0]} to {one.value[1]}" for one in returned)
    return right(
        f"The four ranks own {shares}: every element once. The last share is short, so real "
        "buffers are padded, as you can see in flat.py."
    )


def _is_place(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def share(elements: int, rank: int, ranks: int) -> tuple[int, int]:
    """Where a rank's share of a flat buffer starts, and where it stops."""
    size = -(-elements // ranks)
    start = min(rank * size, elements)
    return start, min(start + size, elements)


EXERCISES = (
    Exercise(
        name="zero1-optimizer-bytes",
        lab=LAB,
        question="ZeRO-1 trains the model micro on four devices, in fp32 with AdamW. How many "
        "bytes of optimizer state does one rank hold?",
        judge=number(
            lambda: _optimizer_bytes("zero1"),
            "the optimizer state of rank 0 under ZeRO-1",
            unit="bytes",
            within=0.001,
            slips=(
                Slip(
                    lambda: _optimizer_bytes("ddp"),
                    "That is all of it, what every rank of ddp holds; ZeRO-1 gives each rank a "
                    "share.",
                ),
                Slip(
                    lambda: _MODEL.parameters,
                    "That is a quarter of one number of 4 bytes; AdamW keeps two for each "
                    "parameter.",
                ),
                Slip(
                    lambda: 4 * _MODEL.parameters,
                    "That is one number of 4 bytes for each parameter, and not split.",
                ),
            ),
            why="two moments of 4 bytes for a quarter of the parameters, and a step counter of 4 "
            "bytes for each flat piece",
        ),
        solution=lambda: 8 * _MODEL.parameters // RANKS,
        hint="AdamW's two moments, 4 bytes each, for how many of model.parameters?",
    ),
    Exercise(
        name="zero3-largest",
        lab=LAB,
        question="The same model under ZeRO-3, batch 8 × 128. What is the largest part of the "
        "peak: 'parameters', 'gradients', 'optimizer', 'activations' or 'unsharded'?",
        judge=choice(
            _largest,
            {
                category: (lambda category=category: _about(category))  # type: ignore[misc]
                for category in ("parameters", "gradients", "optimizer", "activations", "unsharded")
            },
        ),
        solution=_largest,
        hint="ZeRO splits what belongs to the weights. What belongs to the batch?",
    ),
    Exercise(
        name="no-more-bytes",
        lab=LAB,
        question=f"The model mini on four devices, batch=8 and seq=64: find a plan whose peak is "
        f"at most {LIMIT_BYTES // MIB} MiB on every rank, and which sends no more bytes than ddp.",
        judge=plan_for(
            lambda: Model("mini"),
            peak_at_most(LIMIT_BYTES),
            _sends_no_more_than_ddp,
            devices=RANKS,
            keep=_KEEP,
        ),
        solution=lambda: Plan("zero2", devices=RANKS, **_KEEP),
        hint="An all-reduce is a reduce-scatter and an all-gather, so two of the three stages cost "
        "nothing on the wire.",
    ),
    Exercise(
        name="zero-share",
        lab=LAB,
        question=f"Which part of a flat buffer of {_ELEMENTS} elements does each of {RANKS} ranks "
        "own? Write a function of elements, rank and ranks that returns where the rank's share "
        "starts and where it stops (not included). Shares are equal, but the last may be shorter.",
        judge=function_on(
            RANKS,
            lambda rank: [_ELEMENTS, rank, RANKS],
            _judge_shares,
            takes="elements, rank and ranks",
        ),
        solution=lambda: share,
        hint="A share is elements / ranks, rounded up: -(-elements // ranks).",
    ),
)
