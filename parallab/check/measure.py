"""Real steps for a check, on the engines that the kernel already has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parallab.errors import ClusterError
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.report import WARM_STEP, Report

if TYPE_CHECKING:
    from parallab.panels.engines import Engines

# The first step in which every byte is that of all later ones, and one more that is not traced.
STEPS = WARM_STEP + 2
RUN_SECONDS = 90.0

_reports: dict[tuple[Model, Plan, int], Report] = {}


def measured(model: Model, plan: Plan, steps: int = STEPS, *, again: bool = False) -> Report:
    """Runs a plan on the lab's engines, or on new ones where no lab has started any.

    What has run before is not run again: its bytes would be the same.

    Args:
        again: run it all the same, for its times.

    Raises:
        ClusterError: the engines are busy, or the run took longer than a check may.
        PlanError: the plan does not go with the model or with this machine.
    """
    key = (model, plan, steps)
    if again or key not in _reports:
        _reports[key] = _run(model, plan, steps)
    return _reports[key]


def _run(model: Model, plan: Plan, steps: int) -> Report:
    plan.check(model)
    engines = _engines()
    if plan.devices > engines.max_devices:
        raise ClusterError(
            f"This plan needs {plan.devices} devices, and a lab here has at most "
            f"{engines.max_devices}."
        )
    with engines.claim(plan.devices, lambda _: None) as cluster:
        run = cluster.submit(model, plan, steps)
        try:
            return run.result(RUN_SECONDS)
        except TimeoutError:
            recover: Any = getattr(cluster, "recover", run.stop)
            recover()
            raise ClusterError(
                f"{steps} steps of this plan were not over after {RUN_SECONDS:.0f} s, so they were "
                "ended; a smaller batch or a shorter seq takes less."
            ) from None


def _engines() -> Engines:
    from parallab.panels.engines import at_hand

    return at_hand()
