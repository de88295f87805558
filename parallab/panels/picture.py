"""The right half of the run panel: the main figures, the plots, and which bytes they show.

Before a run they show what is predicted for the present choice. Then they show the run, with the
prediction under it, and again the next choice when that is another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import ipywidgets as widgets

from parallab.models.spec import Model
from parallab.panels.engines import Runner
from parallab.panels.parts import Look
from parallab.panels.theory import prediction
from parallab.panels.tiles import tiles
from parallab.panels.worker import Latest
from parallab.plan import Plan
from parallab.plots.history import History
from parallab.plots.live import LiveRunView
from parallab.plots.style import caption
from parallab.progress import Progress
from parallab.report import Report

# While a run is under way, the bubble is that of so many steps.
RECENT_STEPS = 50
QUANTITIES = [("payload", "payload_bytes"), ("on the wire", "wire_bytes")]

Job = tuple[Model, Plan, int]


class Picture:
    """Tiles above the plots, and the switch between payload and bytes on the wire below.

    Args:
        first: what the first, empty plots are drawn for.
        failed: called with what went wrong in a thread.

    Attributes:
        widget: all of it.
        image: the plots.
        view: what draws them.
    """

    def __init__(
        self, look: Look, runner: Runner, first: Job, failed: Callable[[BaseException], None]
    ) -> None:
        self._runner, self._failed = runner, failed
        self._lock = threading.RLock()
        self._running = False
        self._ran: tuple[Model, Plan, LiveRunView] | None = None
        self._latest = Latest(failed)
        self._tiles = look.text()
        self.image = widgets.Image(format="png", layout=widgets.Layout(width="100%"))
        self.image.add_class("pl-fig")
        self.quantity = widgets.ToggleButtons(options=QUANTITIES, value="wire_bytes")
        self.quantity.add_class("pl-quantity")
        self.quantity.tooltips = [
            "The tensors that the operations work on",
            "What one rank sends if the operations run on an ideal ring",
        ]
        self.quantity.observe(lambda _: self._latest(self._update), "value")
        words = look.text('<span class="pl-muted">Communication shown:&nbsp;</span>')
        switch = widgets.HBox(
            [words, self.quantity],
            layout=widgets.Layout(align_items="center", padding="2px 0 0"),
        )
        self.widget = widgets.VBox(
            [self._tiles, self.image, switch],
            layout=widgets.Layout(
                flex="1000 1 560px", min_width="0", overflow="hidden", padding="7px 0 0"
            ),
        )
        self._job = self._wanted = first
        self._shown = self.quantity.value
        self.view = self._new_view(*first)

    @property
    def predicted(self) -> Report | None:
        """The prediction of what is shown."""
        return self.view.history.predicted

    def expect(self, model: Model, plan: Plan, steps: int) -> None:
        """Shows what is predicted, or the last run where that was the same. Returns at once."""
        self._wanted = (model, plan, steps)
        self._latest(self._update)

    def _update(self) -> None:
        """Shows the latest choice of plan and of bytes."""
        with self._lock:
            job = self._wanted
            if self._running or job == self._job:
                if self._shown != self.quantity.value:
                    self.redraw()
                return
            self._job = job
            if self._ran is not None and job[:2] == self._ran[:2]:
                self.view = self._ran[2]
                self.redraw()
            else:
                self.view = self._new_view(*job)

    def begin(self, model: Model, plan: Plan, steps: int, runner: Runner | None = None) -> None:
        """Shows a run from its beginning."""
        with self._lock:
            self._running, self._job = True, (model, plan, steps)
            self._wanted = self._job
            self.view = self._new_view(model, plan, steps, runner)
            self._ran = (model, plan, self.view)

    def add(self, progress: Progress) -> None:
        """Shows what a run brings."""
        self.view.add(progress)
        self.view.draw()
        if progress.steps:
            self.show_tiles(RECENT_STEPS)

    def end(self) -> None:
        """Shows the whole run. From now on, another choice takes its place."""
        with self._lock:
            if self._running:
                self._running = False
                try:
                    self.redraw()
                except Exception as error:  # noqa: BLE001 a run ends, whatever it brought
                    self._failed(error)

    def redraw(self) -> None:
        """Shows the same once more, with the bytes that are chosen."""
        with self._lock:
            self._shown = self.quantity.value
            self.view.show_quantity(self._shown)
            self.show_tiles(RECENT_STEPS if self._running else None)

    def show_tiles(self, last: int | None = None) -> None:
        """Shows the main figures; the bubble of the last so many steps."""
        payload = self.quantity.value == "payload_bytes"
        self._tiles.value = tiles(self.view.history.report, payload, last, self.predicted)

    def wait(self, timeout: float | None = None) -> None:
        """Waits for what was asked for to be shown."""
        self._latest.wait(timeout)

    def close(self) -> None:
        """Draws no more choices."""
        self._latest.close()

    def _new_view(
        self, model: Model, plan: Plan, steps: int, runner: Runner | None = None
    ) -> LiveRunView:
        runner = runner or self._runner
        predicted = prediction(model, plan, runner.kernels)
        history = History(
            model, plan, source=runner.source, devices=runner.devices(plan.devices),
            predicted=predicted,
        )  # fmt: skip
        words = caption(history.report)
        if runner.replayed is not None:
            words = f"replay of a saved run: {words}"
        elif not self._running:
            words = caption(predicted) if predicted is not None else "nothing has run yet"
        view = LiveRunView(
            history, steps, self._show, caption=words, quantity=self.quantity.value
        )  # fmt: skip
        self.view = view
        self.show_tiles()
        return view

    def _show(self, png: bytes) -> None:
        self.image.value = png
