"""Exercises of 08_scale."""

from __future__ import annotations

from parallab.check.exercise import Exercise
from parallab.check.judges import Slip, number, plan_for
from parallab.check.predicted import fits, predicted, uses_at_least
from parallab.hardware import Hardware
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.predict import predict

LAB = "08_scale"
MODEL = Model("llama-3.1-70b")
HARDWARE = Hardware("h100", nodes=128)
DEVICES = (8, 16, 32, 64, 128, 256, 512, 1024)
TASK = {"batch": 1024, "seq": 4096, "precision": "bf16", "optimizer": "adamw"}


def _fits_from(share: float) -> int:
    """The fewest GPUs, a power of two, on each of which ZeRO-3 fills no more than this share."""
    room = share * HARDWARE.gpu.memory_bytes
    return next(
        devices
        for devices in DEVICES
        if predict(MODEL, _sharded(devices), kernels="cuda").peak_bytes <= room
    )


def _sharded(devices: int) -> Plan:
    return Plan("zero3", devices, batch=devices, seq=4096, precision="bf16", recompute="full")


EXERCISES = (
    Exercise(
        "fits-from", LAB,
        "Llama 3.1 70B with ZeRO-3, one sequence of 4,096 tokens for each GPU, bf16 with full "
        "recomputation: from how many H100s on does it fill at most 80 % of each? Count in powers "
        "of two.",
        number(
            lambda: _fits_from(0.8), "the number of GPUs from which it fits", unit="GPUs", least=1,
            how="predicted",
            slips=(Slip(lambda: _fits_from(1.0), "There it fits into the whole of a card, and "
                                                 "nothing would be left for anything else."),),
            why="Predicted: its states, 16 bytes for each parameter, fall with every GPU; "
                "activations and one gathered block do not.",
        ),
        lambda: _fits_from(0.8),
        "pl.Scaling takes a model, recompute='full', and draws the line of a card; or divide 16 "
        "bytes for each parameter, and mind what does not shrink.",
    ),
    Exercise(
        "a-thousand-gpus", LAB,
        "Llama 3.1 70B on 1,024 H100s in nodes of 8, 1,024 sequences of 4,096 tokens a step, bf16: "
        "give a plan that leaves a tenth of every GPU free and is estimated to use at least 42 % "
        "of the GPUs' peak.",
        plan_for(lambda: MODEL, fits(HARDWARE), uses_at_least(0.42, HARDWARE),
                 report_of=predicted, devices=HARDWARE.devices, keep=TASK),
        lambda: Plan("3d", dp=64, pp=4, tp=4, batch=1024, seq=4096, micro_batches=16,
                     schedule="zbv", sequence_parallel=True, precision="bf16"),
        "One sequence for each GPU is little to fill a pipeline with: a group of tensor ranks "
        "shares a sequence, and a zero-bubble schedule has less to wait for.",
    ),
)  # fmt: skip
