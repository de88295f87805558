"""What memory is made of, as sums that a person can check."""

from __future__ import annotations

import html

from parallab.plan import Plan
from parallab.plots.style import in_words, unit_for
from parallab.report import Memory, Report

STATES = ("parameters", "gradients", "optimizer")
_NAMES = {"parameters": "weights", "gradients": "gradients", "optimizer": "optimizer"}
# What the data axis divides (arXiv:1910.02054, section 5).
_DIVIDED = {
    "zero1": STATES[2:], "zero1-torch": STATES[2:], "zero2": STATES[1:], "zero3": STATES,
}  # fmt: skip


def bytes_per_parameter(plan: Plan) -> dict[str, int]:
    """Bytes of weight, gradient and optimizer state for one parameter, before anything is divided.

    AdamW's two moments are fp32; with bf16 the fp32 master weight is the optimizer's as well
    (arXiv:1910.02054, section 3.1).
    """
    moments = 8 if plan.optimizer == "adamw" else 0
    master = 4 if plan.precision == "bf16" else 0
    return dict(
        zip(STATES, (plan.element_bytes, plan.element_bytes, moments + master), strict=True)
    )


def sum_in_words(plan: Plan) -> str:
    """The bytes per parameter as a sum, and what the data axis divides.

    >>> sum_in_words(Plan("ddp", 8, precision="bf16"))
    '2 weights + 2 gradients + 12 optimizer = 16 bytes per parameter'
    """
    whole = bytes_per_parameter(plan)
    words = " + ".join(f"{size} {_NAMES[state]}" for state, size in whole.items())
    text = f"{words} = {sum(whole.values())} bytes per parameter"
    if plan.data == "dp":
        return f"{text} on rank 0; the other ranks keep the weights alone"
    divided = _DIVIDED.get(plan.data, ())
    if not divided:
        return text
    each = {state: size / plan.dp if state in divided else size for state, size in whole.items()}
    words = " + ".join(
        f"{size} ÷ {plan.dp} {_NAMES[state]}" if state in divided else f"{size} {_NAMES[state]}"
        for state, size in whole.items()
    )
    about = "about " if plan.data == "zero1-torch" else ""
    return f"{text}; on a rank {words} = {about}{sum(each.values()):.4g}"


def peak_in_words(memory: Memory, rank: int, memory_bytes: int, device: str) -> str:
    """How a peak adds up, and what a device has left."""
    states = sum(memory.at_peak.get(state, 0) for state in STATES)
    activations = memory.at_peak.get("activations", 0)
    rest = memory.peak_bytes - states - activations
    left = memory_bytes - memory.peak_bytes
    # One unit, so that it can be added up.
    unit = unit_for(min(memory.peak_bytes, memory_bytes))
    words = [in_words(size, unit) for size in (states, activations, rest, memory.peak_bytes)]
    verdict = f"{in_words(left)} left" if left >= 0 else f"{in_words(-left, unit)} too much"
    return (
        f"Predicted peak of rank {rank}: {words[0]} states + {words[1]} activations + {words[2]} "
        f"other = {words[3]} of {in_words(memory_bytes)} on {device}: {verdict}"
    )


def payload_table(report: Report) -> str:
    """What the busiest rank sends in a step, by axis and operation, as HTML."""
    rows = [
        f'<tr><td class="pl-text">{op.replace("_", "-")} on {html.escape(axis)}</td>'
        f"<td>{in_words(row['payload_bytes'])}</td><td>{in_words(row['wire_bytes'])}</td></tr>"
        for (op, axis), row in report.communication().items()
        if op != "recv" and row["payload_bytes"]
    ]
    if not rows:
        return '<div class="pl-muted">Nothing is sent.</div>'
    head = (
        f'<tr><th class="pl-text">Busiest rank, {report.source}</th><th>payload per step</th>'
        "<th>on the wire, ideal ring</th></tr>"
    )
    return f'<table class="pl-table">{head}{"".join(rows)}</table>'
