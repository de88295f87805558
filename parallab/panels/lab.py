"""`pl.Lab()`: all panels as one object in a notebook cell."""

from __future__ import annotations

import base64
import html
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from parallab.cluster.places import Device
from parallab.errors import ClusterError
from parallab.panels.engines import Engines, Playback, Runner, shared
from parallab.panels.run import RunPanel
from parallab.plan import Plan, check_steps
from parallab.report import Report
from parallab.spec import Model

if TYPE_CHECKING:
    from parallab.cluster import Cluster


class Lab:
    """The panels of parallab.

    >>> lab = pl.Lab()                                                  # doctest: +SKIP
    >>> lab                                                             # doctest: +SKIP
    >>> report = lab.run(pl.Model("mini"), pl.Plan("zero3"))            # doctest: +SKIP

    All labs of a kernel share its engines, which start at the first run.

    Args:
        cluster: your own engines instead; the panel never shuts them down.
        device: what to start engines on.
        replay: a saved Report to play back; nothing is run.
        runner: anything else that runs plans.
    """

    def __init__(
        self,
        cluster: Cluster | None = None,
        *,
        device: Device = "auto",
        replay: Report | None = None,
        runner: Runner | None = None,
    ) -> None:
        if runner is None and replay is not None:
            runner = Playback(replay)
        if runner is None:
            runner = Engines(cluster) if cluster is not None else shared(device)
        self.panel = RunPanel(runner)
        self.widget = self._tabs({"Run": self.panel.widget})

    def _tabs(self, panels: dict[str, widgets.Widget]) -> widgets.Widget:
        """A single panel needs no tabs."""
        if len(panels) == 1:
            return next(iter(panels.values()))
        return widgets.Tab(list(panels.values()), titles=list(panels))

    @property
    def report(self) -> Report | None:
        """The last run's Report, None before the first."""
        return self.panel.report

    def run(self, model: Model, plan: Plan, steps: int = 5) -> Report:
        """Runs in the panel, as if Run had been pressed, and waits for the Report.

        Interrupting the cell stops the run after its current step.

        Raises:
            PlanError: the plan does not go with the model, or the steps are none.
            ClusterError: the run failed, or another one is under way in this panel.
        """
        plan.check(model)
        if not self.panel.start(model, plan, check_steps(steps)):
            raise ClusterError(
                "This panel is closed, or its last run is still under way: stop it first."
            )
        try:
            self.panel.wait()
        except KeyboardInterrupt:
            self.panel.stop()
            self.panel.wait()
        if self.panel.error is not None:
            raise self.panel.error
        assert self.panel.report is not None
        return self.panel.report

    def close(self) -> None:
        """Stops what runs and takes the panels off the page."""
        self.panel.close()

    # What a notebook shows: the live panel, and for one without a kernel what was last seen.

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        bundle = self.widget._repr_mimebundle_(**options) or {}
        data = dict(bundle[0] if isinstance(bundle, tuple) else bundle)
        png = base64.b64encode(self.panel.picture).decode()
        return {
            **data,
            "text/plain": repr(self),
            "text/html": (
                f'<div style="font-size:12px;color:#666">{html.escape(repr(self))}</div>'
                '<img alt="memory, communication and loss" style="max-width:940px" '
                f'src="data:image/png;base64,{png}">'
            ),
            "image/png": png,
        }

    def __repr__(self) -> str:
        report = self.report
        what = repr(report) if report is not None else "nothing has run yet"
        return f"<parallab Lab, {self.panel.state}: {what}>"
