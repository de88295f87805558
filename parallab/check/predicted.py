"""Plans for more GPUs than are at hand: held against formulas, and named as such."""

from __future__ import annotations

from parallab.check.judges import Condition
from parallab.hardware import Hardware
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.predict import predict
from parallab.predict.time import step_time
from parallab.report import Report
from parallab.units import gib, percent


def predicted(model: Model, plan: Plan) -> Report:
    """What the plan would cost with a GPU's kernels."""
    return predict(model, plan, kernels="cuda")


def fits(hardware: Hardware) -> Condition:
    """Every rank stays within what is there to fill of its GPU."""
    room = min(hardware.room_bytes)

    def holds(report: Report) -> tuple[bool, str]:
        rank = max(report.ranks, key=lambda rank: rank.peak.peak_bytes)
        peak = rank.peak.peak_bytes
        most = max(rank.peak.at_peak.items(), key=lambda item: item[1])
        where = "within" if peak <= room else "above"
        return peak <= room, (
            f"Rank {rank.rank}, predicted, needs {gib(peak)}, {where} the {gib(room)} that may be "
            f"filled; its largest part is {most[0]} with {gib(most[1])}"
        )

    return holds


def uses_at_least(share: float, hardware: Hardware) -> Condition:
    """The estimated step uses so much of the GPUs' peak."""

    def holds(report: Report) -> tuple[bool, str]:
        step = step_time(report.model, report.plan, hardware)
        used = step.utilization
        waits = {part: s for part, s in step.parts().items() if part != "computing"}
        longest = max(waits, key=lambda part: waits[part])
        return used >= share, (
            f"The step is estimated at {step.seconds:,.2f} s, {percent(used)} of the GPUs' peak, "
            f"where at least {percent(share)} is asked for; what costs most besides computing is "
            f"{longest} with {percent(waits[longest] / step.seconds)} of the step"
        )

    return holds
