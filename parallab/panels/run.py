"""The run panel: choose a strategy, run real steps, watch memory and communication live.

Its life is idle -> running -> done | stopped | failed, and again. A callback starts the worker
thread or asks it to stop, and returns; only the worker waits, polls and draws. What goes wrong in
the worker is shown in the panel, since nobody sees a thread's traceback.
"""

from __future__ import annotations

import html
import threading
import time
from typing import Any

import ipywidgets as widgets

from parallab.cluster.room import check_fits
from parallab.errors import ParallabError
from parallab.models.spec import Model
from parallab.panels.controls import Controls
from parallab.panels.engines import Playback, Runner
from parallab.panels.home import Home
from parallab.panels.parts import Log, Look, all_widgets, close_all, error_words
from parallab.panels.picture import Picture
from parallab.panels.pins import PinButton, Pins
from parallab.panels.style import STYLE
from parallab.panels.why import Why
from parallab.panels.words import replay_words
from parallab.plan import Plan
from parallab.plots.history import History
from parallab.plots.style import in_words
from parallab.predict.placement import stage_lines
from parallab.progress import Progress, Run
from parallab.report import Report

POLL_SECONDS = 0.05
RESULT_SECONDS = 60
# A page that is loading drops updates for some seconds; the end of a run must not be among them.
RESEND_AFTER_SECONDS = (2, 8)


class RunPanel:
    """Controls on the left, live plots on the right, progress and log below.

    Args:
        runner: where runs happen; engines, or a saved Report.
        pins: what keeps runs to compare them.

    Attributes:
        widget: what a notebook shows.
        state: "idle", "running", "done", "stopped" or "failed".
        report: the last run's Report, None before the first.
        error: why the last run failed, None where it did not.
    """

    def __init__(self, runner: Runner, pins: Pins | None = None) -> None:
        self.runner, self._pins = runner, pins
        self.state = "idle"
        self.report: Report | None = None
        self.error: BaseException | None = None
        self._guard = threading.Lock()
        self._over = threading.Event()  # of the present run
        self._over.set()
        self._stop = threading.Event()
        self._run: Run | None = None
        self._replayed: Report | None = None
        self._closed = False
        self._build()
        self._set_state("idle")
        self._say("Ready." if runner.replayed is None else "Ready to replay a saved Report.")

    # What it looks like.

    def _build(self) -> None:
        replay = self.runner.replayed is not None
        self._look = look = Look()
        self._run_button = _button("Replay" if replay else "Run", "play", "success", "pl-run")
        self._stop_button = _button("Stop", "stop", "", "pl-stop")
        self._release_button = _button("Release memory", "eraser", "", "pl-release")
        self._pin = PinButton(
            look, self._pins, lambda: [self.report] if self.report else [], self._note
        )
        self._stop_button.tooltip = "Stop after the current step"
        self._release_button.tooltip = "Free the model that the engines keep after a run"
        self._run_button.on_click(lambda _: self.start())
        self._stop_button.on_click(lambda _: self.stop())
        self._release_button.on_click(lambda _: self._in_background(self._release))
        self._why, self._error = look.text(), look.text()
        self._bar = widgets.IntProgress(min=0, max=1, value=0)
        self._bar.add_class("pl-progress")
        self._status = widgets.HTML(layout=widgets.Layout(flex="1 1 0", min_width="0"))
        self._log = Log(look)
        self._home = Home(look, lambda: (self.controls.model, self.controls.plan))
        self._why_differs = Why(look, self._show_error, self._pins, self._note)
        self.controls = Controls(self.runner, look, self._choice_changed)
        if self.runner.replayed is not None:
            report = self.runner.replayed
            self.controls.show(report.model, report.plan, report.steps)
            self.controls.lock(True)
        self._picture = Picture(look, self.runner, self._chosen(), self._show_error)
        self.widget = self._lay_out()

    def _lay_out(self) -> widgets.VBox:
        title = self._look.text(
            f'{STYLE}<div class="pl-title">Run a strategy</div><div class="pl-muted">'
            "Real training steps: what they cost in memory on every device, and in bytes between "
            "them.</div>"
        )
        buttons = widgets.HBox(
            [self._run_button, self._stop_button],
            layout=widgets.Layout(margin="12px 0 6px", grid_gap="6px"),
        )
        below = widgets.HBox(
            [self._release_button, self._pin.widget, self._home.button], layout=self._look.layout
        )
        below.add_class("pl-actions")
        left = widgets.VBox(
            [self.controls.fields, buttons, below, self._why],
            layout=widgets.Layout(flex="1 1 264px", min_width="0", padding="0 18px 0 0"),
        )
        middle = widgets.Box(
            [left, self._picture.widget],
            layout=widgets.Layout(display="flex", flex_flow="row wrap", align_items="flex-start"),
        )
        foot = widgets.HBox(
            [self._bar, self._status],
            layout=widgets.Layout(align_items="center", grid_gap="10px", margin="6px 0 0"),
        )
        root = widgets.VBox(
            [
                title, self.controls.header, middle, self._home.words, self._why_differs.widget,
                self._error, foot, self._log.widget,
            ],
            layout=self._look.layout,
        )  # fmt: skip
        root.add_class("pl-panel")
        return root

    # What a person, or a cell, asks of it. Everything here returns at once.

    def start(
        self, model: Model | None = None, plan: Plan | None = None, steps: int | None = None
    ) -> bool:
        """Starts a run of what is given or chosen. Returns False while one is under way."""
        with self._guard:
            if self._closed or self.state == "running":
                return False
            try:
                model, plan = model or self.controls.model, plan or self.controls.plan
                plan.check(model)
            except ParallabError as error:
                self._error.value = error_words(error)
                return False
            self._launch(self.runner, model, plan, steps or self.controls.steps)
            return True

    def replay(self, report: Report, speed: float | None = None) -> bool:
        """Plays a saved Report; nothing is run, and no engines are needed.

        Args:
            speed: how many times as fast as it ran; None is as fast as it can be shown.

        Returns:
            False while a run is under way.
        """
        with self._guard:
            if self._closed or self.state == "running":
                return False
            self._launch(Playback(report, speed), report.model, report.plan, report.steps)
            return True

    def _launch(self, runner: Runner, model: Model, plan: Plan, steps: int) -> None:
        self._stop.clear()
        self._run, self.error, self._replayed = None, None, None
        self._error.value = ""
        self._why_differs.clear()
        self._set_state("running")
        self._over = over = threading.Event()
        threading.Thread(
            target=self._work, args=(runner, model, plan, steps, over), name="parallab-panel",
            daemon=True,
        ).start()  # fmt: skip

    def stop(self) -> None:
        """Asks the run to end after the current step."""
        with self._guard:
            if self.state != "running":
                return
            self._stop.set()
            self._stop_button.disabled = True
            if self._run is not None:
                self._run.stop()
        self._say("Stopping after the current step …")

    def why_not(self, model: Model, plan: Plan) -> str | None:
        """Why a plan can never run here, None where it can, perhaps after the present run."""
        if self.runner.replayed is not None:
            return "This lab replays a saved Report: nothing runs in it."
        if plan.devices > self.runner.max_devices:
            most = self.runner.max_devices
            return f"This plan is for {plan.devices:,} devices, and a lab here has at most {most}."
        try:
            plan.check(model)
            check_fits(model, plan, *self.runner.room())
        except ParallabError as error:
            return str(error)
        return model.why_not_trainable

    def wait(self, timeout: float | None = None) -> str:
        """Waits for the run to end. Returns the state."""
        # No join: one that Ctrl-C interrupts takes the thread for dead (Python 3.11, bpo-45274).
        self._over.wait(timeout)
        return self.state

    @property
    def frames(self) -> int:
        """How many frames the present run has drawn."""
        return self._picture.view.frames

    @property
    def picture(self) -> bytes:
        """The plots as they are now, as a PNG."""
        return bytes(self._picture.image.value)

    def close(self) -> None:
        """Stops the run, takes the panel off the page and gives its engines back."""
        if self._closed:
            return
        self._closed = True
        self.stop()
        self._picture.close()
        self._why_differs.stop()
        close_all(self.widget)
        self._in_background(self._leave)

    # The worker.

    def _work(
        self, runner: Runner, model: Model, plan: Plan, steps: int, over: threading.Event
    ) -> None:
        outcome = "failed"
        try:
            # A replayed plan may be for more devices than can be chosen here.
            fits = runner is self.runner or plan.devices <= self.runner.max_devices
            if self.runner.replayed is None and fits:
                self.controls.show(model, plan, steps)
            self._replayed = runner.replayed
            title = f"{model.name}: {plan}, {steps} steps"
            if self._replayed is not None:
                title = f"Replay of a saved run: {title}"
            for line in (title, *stage_lines(model, plan)):
                self._log(line)
            with runner.claim(plan.devices, self._note) as submitter:
                outcome = self._follow(submitter.submit(model, plan, steps), runner)
        except BaseException as error:  # noqa: BLE001 a thread's traceback is seen by nobody
            if self._run is not None:
                self._run.stop()
            self.error = error
            self._error.value = error_words(error)
            self._say("Failed.")
            self._log(f"Failed: {error}")
        finally:
            try:
                self._end(outcome)
            finally:
                over.set()

    def _end(self, outcome: str) -> None:
        self._picture.end()
        self._bar.bar_style = {"done": "success", "stopped": "warning"}.get(outcome, "danger")
        self._set_state(outcome)
        for seconds in RESEND_AFTER_SECONDS:
            timer = threading.Timer(seconds, self._resend)
            timer.daemon = True
            timer.start()

    def _follow(self, run: Run, runner: Runner) -> str:
        """Shows a run until it is over. Returns how it ended."""
        with self._guard:
            self._run = run
            if self._stop.is_set():
                run.stop()
        self._bar.max, self._bar.value, self._bar.bar_style = run.total_steps, 0, "info"
        self._picture.begin(run.model, run.plan, run.total_steps, runner)
        progress = run.poll()
        while not progress.finished:
            self._show(progress)
            time.sleep(POLL_SECONDS)
            progress = run.poll()
        self._show(progress)
        self.report = run.result(timeout=RESULT_SECONDS)
        self._why_differs.show(self._picture.predicted, self.report)
        self._log(self._summary())
        return progress.state

    def _show(self, progress: Progress) -> None:
        self._picture.add(progress)
        history = self._picture.view.history
        if progress.steps:
            self._bar.value = history.report.steps
            self._log_steps(history, len(progress.steps))
        if not self._stop.is_set() or progress.finished:
            self._say(progress.message)

    def _log_steps(self, history: History, new: int) -> None:
        report = history.report
        for index in range(report.steps - new, report.steps):
            steps = [rank.steps[index] for rank in report.ranks]
            seconds = max((s.seconds for s in steps if s.seconds is not None), default=None)
            peak = max(s.memory.peak_bytes for s in steps)
            took = f", {1000 * seconds:.0f} ms" if seconds is not None else ""
            traced = ", traced" if any(s.traced for s in steps) else ""
            loss = history.losses[index]
            self._log(f"step {steps[0].step}: loss {loss:.3f}{took}, peak {in_words(peak)}{traced}")

    def _summary(self) -> str:
        assert self.report is not None
        return f"{self.report.steps} steps, highest peak {in_words(self.report.peak_bytes)}"

    def _leave(self) -> None:
        self.wait()
        self.runner.close()

    def _release(self) -> None:
        self._note(self.runner.release())

    def _in_background(self, action: Any) -> None:
        def guarded() -> None:
            try:
                action()
            except BaseException as error:  # noqa: BLE001 as in the worker
                self._show_error(error)

        threading.Thread(target=guarded, name="parallab-panel-action", daemon=True).start()

    # Small setters, safe from any thread.

    def _set_state(self, state: str) -> None:
        running = state == "running"
        self.controls.lock(running or self.runner.replayed is not None)
        self._stop_button.disabled = not running
        self._stop_button.button_style = "danger" if running else ""
        self._release_button.disabled = running
        self._pin.refresh(state in ("done", "stopped"))
        for old in ("idle", "running", "done", "stopped", "failed"):
            self.widget.remove_class(f"pl-{old}")
        # Last, since whoever waits for the end looks at these.
        self.state = state
        self.widget.add_class(f"pl-{state}")
        self._show_reason()

    def _choice_changed(self) -> None:
        if self.state != "running":
            self._replayed = None
        self._home.hide()
        self._show_reason()
        picture = getattr(self, "_picture", None)  # none while the controls are being made
        if picture is not None and not self._closed:
            picture.expect(*self._chosen())

    def _show_error(self, error: BaseException) -> None:
        self._error.value = error_words(error)

    def _show_reason(self) -> None:
        controls = getattr(self, "controls", None)
        reason, notice = (controls.reason, controls.notice) if controls else (None, "")
        self._run_button.disabled = self.state == "running" or reason is not None
        self._run_button.tooltip = reason or "Run these steps"
        if self.state == "running":
            reason, notice = None, ""
        if self._replayed is not None:
            notice = replay_words(self._replayed)
        self._why.value = (
            f'<div class="pl-why">{html.escape(reason or "")}</div>'
            f'<div class="pl-notice">{html.escape(notice)}</div>'
        )

    def _say(self, message: str) -> None:
        self._status.value = f'<div class="pl-status">{html.escape(message)}</div>'

    def _note(self, message: str) -> None:
        self._say(message)
        self._log(message)

    def _chosen(self) -> tuple[Model, Plan, int]:
        """What the plots are drawn for while nothing runs."""
        model = self.controls.model
        try:
            return model, self.controls.plan, self.controls.steps
        except ParallabError:
            return model, Plan(devices=1), self.controls.steps

    def _resend(self) -> None:
        if self.state == "running":
            return
        for widget in all_widgets(self.widget):
            if widget.comm is not None:
                widget.send_state()


def _button(label: str, icon: str, style: str, css: str) -> widgets.Button:
    button = widgets.Button(
        description=label, icon=icon, button_style=style, layout=widgets.Layout(flex="1 1 0")
    )
    button.add_class("pl-action")
    button.add_class(css)
    return button
