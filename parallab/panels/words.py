"""What the run panel's inputs are called, what pointing at an option shows, and a notice."""

from __future__ import annotations

from typing import Any

from parallab.report import Report

# Label and note of each input.
LABELS: dict[str, tuple[str, str]] = {
    "strategy": ("Strategy", ""),
    "model": ("Model", ""),
    "devices": ("Devices", ""),
    "dp": ("dp", "data"),
    "pp": ("pp", "pipeline"),
    "tp": ("tp", "tensor"),
    "zero": ("ZeRO stage", ""),
    "sequence_parallel": ("Sequence parallel", ""),
    "batch": ("Batch", "sequences"),
    "seq": ("Sequence", "tokens"),
    "micro_batches": ("Micro-batches", ""),
    "steps": ("Steps", ""),
    "schedule": ("Schedule", ""),
    "precision": ("Precision", ""),
    "recompute": ("Recompute", ""),
    "optimizer": ("Optimizer", ""),
}

HINTS: dict[str, dict[Any, str]] = {
    "schedule": {
        "gpipe": "All forward passes, then all backward passes: the activations of every "
        "micro-batch wait.",
        "1f1b": "A backward pass as soon as there is one: fewer activations wait, and the bubble "
        "is the same.",
        "loopedbfs": "Two stages a rank: all micro-batches pass through the first, then through "
        "the second; backward likewise.",
        "interleaved": "As 1f1b, with two stages a rank: half the bubble, twice the messages.",
        "zb": "As interleaved, with the weights' gradients computed later, where a rank would "
        "wait.",
        "zbv": "Two stages a rank in a V, the first and the last on rank 0; the weights' "
        "gradients fill the bubble.",
        "dualpipev": "The V of zbv, with one micro-batch's forward pass beside another's "
        "backward pass.",
    },
    "zero": {
        0: "Nothing is sharded over the data axis: gradients are averaged by all-reduce.",
        1: "The optimizer state is sharded over the data axis.",
        2: "The optimizer state and the gradients are sharded over the data axis.",
        3: "Optimizer state, gradients and weights are sharded over the data axis.",
    },
    "sequence_parallel": {
        False: "Norms and residuals are the same on every tensor-parallel rank.",
        True: "Norms and residuals are split over the tensor axis by tokens: less activation "
        "memory for the same bytes on the wire.",
    },
}


def in_short(value: Any) -> str:
    """An option as a button shows it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)


def replay_words(report: Report) -> str:
    """What a replay says of itself, so that nobody takes it for a run of this moment."""
    devices = ", ".join(sorted({rank.device.split(":")[0] for rank in report.ranks}))
    torch = report.environment.get("torch")
    where = f" on {devices}{f', torch {torch}' if torch else ''}"
    return f"Replay of a saved run, {report.source} earlier{where}. Nothing runs now."
