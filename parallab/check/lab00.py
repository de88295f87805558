"""The exercises of 00_start: where the memory goes."""

from __future__ import annotations

from typing import Any

from parallab.check.exercise import Exercise
from parallab.check.judges import MIB, Slip, number, peak_at_most, plan_for
from parallab.check.measure import measured
from parallab.models.spec import Model
from parallab.plan import Plan

LAB = "00_start"
LIMIT_BYTES = 45 * MIB
_MODEL = Model("micro")
_KEEP: dict[str, Any] = {"batch": 8, "seq": 128}


def _bytes_per_parameter() -> float:
    states = measured(_MODEL, Plan("ddp", devices=4)).ranks[0].steps[-1].memory.states
    held = states["parameters"] + states["gradients"] + states["optimizer"]
    return held / _MODEL.parameters


EXERCISES = (
    Exercise(
        name="bytes-per-parameter",
        lab=LAB,
        question="Training in fp32 with AdamW under DDP: how many bytes does a device hold for "
        "each parameter of the model when the optimizer starts, activations not counted?",
        judge=number(
            _bytes_per_parameter,
            "the number of bytes per parameter on a rank of ddp",
            within=0.01,
            slips=(
                Slip(lambda: 4, "That is the weight alone."),
                Slip(lambda: 8, "That is weight and gradient; AdamW remembers something too."),
                Slip(lambda: 12, "One of four is missing: weight, gradient, and two moments."),
            ),
            why="weight, gradient and two moments, of 4 bytes each; a step counter for every "
            "tensor hardly counts",
        ),
        solution=lambda: 16,
        hint="Four numbers of 4 bytes: which ones?",
    ),
    Exercise(
        name="fits-in-45",
        lab=LAB,
        question="The model mini, a batch of 8 sequences of 128 tokens, at most four devices with "
        f"{LIMIT_BYTES // MIB} MiB each. Which plan trains it? Keep batch=8 and seq=128; all else "
        "is free.",
        judge=plan_for(lambda: Model("mini"), peak_at_most(LIMIT_BYTES), keep=_KEEP),
        solution=lambda: Plan("zero3", devices=4, recompute="full", **_KEEP),
        hint="After ZeRO-3 has cut the states, what is the largest part, and which knob of a plan "
        "makes it small? Or give every device two of the eight layers.",
    ),
)
