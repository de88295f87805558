"""Exercises of 07_choosing."""

from __future__ import annotations

from parallab.check.exercise import Exercise
from parallab.check.judges import Slip, number, plan_for
from parallab.check.predicted import fits, predicted
from parallab.hardware import Hardware
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.predict import predict
from parallab.units import GIB

LAB = "07_choosing"
MODEL = Model("llama-3.1-8b")
CARDS = Hardware("rtx-4090")
TASK = {"batch": 64, "seq": 4096, "precision": "bf16", "optimizer": "adamw"}


def _states_gib() -> float:
    """Weights, gradients and optimizer state of one of eight replicas."""
    plan = Plan("ddp", devices=8, batch=8, seq=4096, precision="bf16")
    states = predict(MODEL, plan).ranks[0].peak.states
    kept = ("parameters", "gradients", "optimizer")
    return round(sum(states[name] for name in kept) / GIB, 1)


def _times(bytes_each: int) -> float:
    return MODEL.parameters * bytes_each / GIB


EXERCISES = (
    Exercise(
        "states-of-eight-billion", LAB,
        "Llama 3.1 8B in bf16 with AdamW, replicated on 8 GPUs as DDP does: how many GiB do "
        "weights, gradients and optimizer state take on each of them?",
        number(
            _states_gib, "a replica's weights, gradients and optimizer state", unit="GiB",
            within=0.01, how="predicted",
            slips=(
                Slip(lambda: _times(16) / 8, "Divided by eight it would be sharded; a replica "
                                             "keeps all of it."),
                Slip(lambda: _times(12), "The optimizer keeps fp32 master weights as well as two "
                                         "moments."),
                Slip(lambda: MODEL.parameters * 16 / 1e9, "That is in GB, of 10⁹ bytes; a GiB has "
                                                          "2³⁰."),
            ),
            why="2 bytes for the weight, 2 for its gradient, and 4 each for the master weight and "
                "two moments: 16 bytes for each parameter. Predicted by closed forms.",
        ),
        _states_gib,
        "How many bytes is that for each parameter? Mind the master weights. A GiB is 2**30 bytes.",
    ),
    Exercise(
        "eight-gaming-cards", LAB,
        "A box has 8 RTX 4090s. Give a plan that trains Llama 3.1 8B on 64 sequences of 4,096 "
        "tokens a step, in bf16 with AdamW, and leaves a tenth of each card free.",
        plan_for(lambda: MODEL, fits(CARDS), report_of=predicted, devices=CARDS.devices, keep=TASK),
        lambda: Plan("3d", dp=4, pp=1, tp=2, zero=3, batch=64, seq=4096, micro_batches=8,
                     sequence_parallel=True, precision="bf16", recompute="full"),
        "Ask pl.advise for it, with gpu='rtx-4090', batch=64 and seq=4096: which part of the peak "
        "does each of its plans make small?",
    ),
)  # fmt: skip
