"""A small Report whose every figure is a literal, for tests of what is made from one."""

import parallab as pl
from parallab.report import Communication, Memory, Rank, Step


def recorded(steps=5, *, model="nano", plan=None):
    """A Report of two ranks, of which steps 0 and 1 are traced."""
    plan = plan or pl.Plan("ddp", 2, batch=4, seq=64)

    def step(index, rank):
        traced = index < 2
        at_peak = {"parameters": 500_992, "gradients": 500_992, "workspace": 46_592 + 1024 * rank}
        peak = sum(at_peak.values())
        return Step(
            index,
            5.5 - 0.1 * index,
            (0.9 if traced else 0.2) + 0.01 * rank,
            traced,
            Memory(peak, at_peak if traced else {}),
            [
                Communication("all_reduce", "dp", "backward", 2, 500_992, 500_992),
                Communication("recv", "dp", "forward", 1, 64, 0),
            ],
        )

    ranks = [
        Rank(r, {"dp": r, "pp": 0, "tp": 0}, "cpu", "here", [step(i, r) for i in range(steps)])
        for r in range(plan.devices)
    ]
    return pl.Report("measured", pl.Model(model), plan, {"torch": "2.13.0"}, ranks)
