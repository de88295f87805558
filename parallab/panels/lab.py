"""`pl.Lab()`: all panels as one object in a notebook cell."""

from __future__ import annotations

import base64
import html
from typing import TYPE_CHECKING, Any, TypeVar, cast

from parallab.cluster.places import Device
from parallab.errors import ClusterError, PlanError, ReportError
from parallab.models.spec import Model
from parallab.panels.advisor import Advisor
from parallab.panels.calculator import Calculator
from parallab.panels.compare import Compare
from parallab.panels.engines import Engines, Playback, Runner, shared
from parallab.panels.pins import Pins
from parallab.panels.run import RunPanel
from parallab.panels.scale import Scale
from parallab.panels.tabs import Tabs
from parallab.plan import Plan, check_both, check_steps
from parallab.report import Report

if TYPE_CHECKING:
    from parallab.cluster import Cluster

Offered = TypeVar("Offered", Advisor, Scale)
UNDER_WAY = "A run is under way in the run panel: stop it, or wait for its end."


class Lab:
    """The panels of parallab: Run, Calculator, Advisor, Scale and Compare.

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
        self.pins = Pins()
        self.panel = RunPanel(runner, self.pins)
        self._pasted: dict[str, Model] = {}
        self._tabs = Tabs({
            "Run": lambda: self.panel,
            "Calculator": lambda: Calculator(self._read, self.pins),
            "Advisor": self._new_advisor,
            "Scale": self._new_scale,
            "Compare": lambda: Compare(self.pins, self._play),
        })  # fmt: skip
        self.pins.watch(self._count_pins)
        self.widget = self._tabs.widget

    @property
    def calculator(self) -> Calculator:
        """Predicts any plan for any model; made when it is first asked for, as the others are."""
        return cast(Calculator, self._tabs.panel("Calculator"))

    @property
    def advisor(self) -> Advisor:
        """Ranks the plans that fit a model on some hardware."""
        return cast(Advisor, self._tabs.panel("Advisor"))

    @property
    def scale(self) -> Scale:
        """The same model on 8 to 4,096 devices."""
        return cast(Scale, self._tabs.panel("Scale"))

    @property
    def compare(self) -> Compare:
        """Pinned Reports side by side."""
        return cast(Compare, self._tabs.panel("Compare"))

    def _new_advisor(self) -> Advisor:
        advisor = Advisor(self.panel.runner, self._run_this, self.panel.why_not, self._calculate)
        return self._with_pasted(advisor)

    def _new_scale(self) -> Scale:
        return self._with_pasted(Scale(self.pins))

    def _with_pasted(self, panel: Offered) -> Offered:
        for model in self._pasted.values():
            panel.offer(model)
        return panel

    def _read(self, model: Model) -> None:
        """A model that was pasted into the calculator can be chosen everywhere."""
        self._pasted[model.name] = model
        for panel in self._tabs.opened:
            if isinstance(panel, Advisor | Scale):
                panel.offer(model)

    def _run_this(self, model: Model, plan: Plan, gpu: str | None) -> None:
        if self.panel.state == "running":
            raise ClusterError(UNDER_WAY)
        reason = self.panel.why_not(model, plan)
        if reason is not None:
            raise PlanError(reason)
        self.panel.controls.show(model, plan, self.panel.controls.steps)
        self._tabs.open("Run")

    def _calculate(self, model: Model, plan: Plan, gpu: str | None) -> None:
        self.calculator.show(model, plan, gpu)
        self._tabs.open("Calculator")

    def _count_pins(self) -> None:
        count = len(self.pins.named)
        self._tabs.label("Compare", f"Compare ({count})" if count else "Compare")

    def _play(self, report: Report, speed: float) -> None:
        if not self.panel.replay(report, speed):
            raise ClusterError(UNDER_WAY)
        self._tabs.open("Run")

    def pin(self, report: Report, name: str = "") -> str:
        """Keeps a Report to compare it; returns what it is called there.

        Raises:
            ReportError: it has no finished step, or too many are pinned.
        """
        return self.pins.add(report, name)

    def replay(self, report: Report, speed: float = 1) -> Report:
        """Plays a saved run in the panel, without engines, and waits for the end.

        Interrupting the cell stops the replay.

        Args:
            speed: how many times as fast as it ran.

        Raises:
            ReportError: the Report was not measured, so there is no run to play.
            ClusterError: a run is under way in this panel.
        """
        if report.source != "measured":
            raise ReportError(
                f"This Report is {report.source}: only a run that was measured can be replayed."
            )
        self._play(report, speed)
        return self._wait()

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
        check_both(model, plan)
        if not self.panel.start(model, plan, check_steps(steps)):
            raise ClusterError(
                "This panel is closed, or its last run is still under way: stop it first."
            )
        return self._wait()

    def _wait(self) -> Report:
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
        self._tabs.close()

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
