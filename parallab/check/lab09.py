"""Exercises of 09_shared_box."""

from __future__ import annotations

from parallab.check.exercise import Exercise, Judge
from parallab.check.judges import MIB, plan_for
from parallab.check.measure import RUN_SECONDS
from parallab.cluster import Cluster
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.report import Report

LAB = "09_shared_box"
MODEL = Model("micro")


def run_capped(model: Model, plan: Plan, caps: tuple[int, ...]) -> Report:
    """Two steps of a plan on the lab's engines, with a cap on each rank, in bytes.

    Raises:
        RankError: a rank came to hold more.
        ClusterError: the engines are busy, or take no caps.
    """
    from parallab.panels.engines import at_hand

    with at_hand().claim(len(caps), lambda _: None) as cluster:
        assert isinstance(cluster, Cluster)
        before = cluster.cap_bytes
        cluster.cap_bytes = [*caps, *[2**40] * (cluster.n - len(caps))]
        try:
            return cluster.submit(model, plan, steps=2).result(RUN_SECONDS)
        finally:
            cluster.cap_bytes = before


def _runs_under(caps_mib: tuple[int, ...], **keep: object) -> Judge:
    """A plan for as many ranks as there are caps, none of which needs more."""
    caps = tuple(cap * MIB for cap in caps_mib)

    def ran(report: Report) -> tuple[bool, str]:
        peaks = ", ".join(f"{rank.peak.peak_bytes / MIB:.1f}" for rank in report.ranks)
        shown = ", ".join(map(str, caps_mib))
        return True, f"it ran under {shown} MiB: the ranks' measured peaks are {peaks} MiB"

    return plan_for(
        lambda: MODEL, ran, report_of=lambda model, plan: run_capped(model, plan, caps),
        devices=len(caps), keep=keep,
    )  # fmt: skip


EXERCISES = (
    Exercise(
        "under-the-cap", LAB,
        "The ranks have 40, 40, 40 and 20 MiB. Give a zero3 plan on the four of them for the model "
        "micro, 32 sequences of 128 tokens a step, without recomputing, that runs.",
        _runs_under((40, 40, 40, 20), strategy="zero3", batch=32, seq=128, recompute="none"),
        lambda: Plan("zero3", devices=4, batch=32, micro_batches=8),
        "States are sharded already. What else is in the peak, and what makes it smaller without "
        "a smaller batch?",
    ),
    Exercise(
        "a-full-first-rank", LAB,
        "Now rank 0 has 20 MiB and the others have 40. Give a dp+pp plan on the four of them for "
        "the model micro, 16 sequences of 128 tokens a step, without recomputing, that runs.",
        _runs_under((20, 40, 40, 40), strategy="dp+pp", batch=16, seq=128, recompute="none"),
        lambda: Plan("dp+pp", dp=2, pp=2, batch=16, micro_batches=8),
        "The first stage holds as many micro-batches as there are stages after it, and one more. "
        "Their number does not change that; their size does.",
    ),
)  # fmt: skip
