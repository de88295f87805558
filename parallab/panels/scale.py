"""Scale: one model on 8 to 4,096 devices, every strategy at once, and any point by simulation."""

from __future__ import annotations

import html
from typing import Any

import ipywidgets as widgets

from parallab.datasheets import GPUS
from parallab.hardware import Hardware
from parallab.models.spec import Model
from parallab.panels.cards import gpu_options, network_options, short
from parallab.panels.menu import ModelMenu
from parallab.panels.parts import Choice, Look, close_all, error_words
from parallab.panels.pins import PinButton, Pins
from parallab.panels.scaling import DEVICES, STRATEGIES, Work, curves, plan_at, point_of
from parallab.panels.style import STYLE
from parallab.panels.theory import Simulation, prediction
from parallab.panels.worker import Latest
from parallab.plan import CHOICES, Plan
from parallab.plots.live import picture
from parallab.plots.scale import Point, plot_scale
from parallab.plots.style import in_words
from parallab.report import Report

FIRST_MODEL, FIRST_GPU, FIRST_STRATEGY, FIRST_DEVICES = "llama-3.1-8b", "h100", "3d", 64


class Scale:
    """Inputs above, the curves below, and a button that simulates one of their points.

    Args:
        pins: what keeps points to compare them.

    Attributes:
        widget: what a notebook shows.
        curves: strategy -> predicted points.
        simulated: what was checked by simulation, for the present inputs.
    """

    def __init__(self, pins: Pins | None = None) -> None:
        self.curves: dict[str, list[Point]] = {}
        self.simulated: list[tuple[str, Report]] = []
        self._work: Work | None = None
        self._point: Plan | None = None
        self._hardware: Hardware | None = None
        self._look = look = Look()
        self._worker = Latest(self._show_error)
        self._simulation = Simulation(self._told, self._show_error, self._ended)
        self._error, self._ends, self._found, self._why = (look.text() for _ in range(4))
        self._image = widgets.Image(format="png", layout=widgets.Layout(width="100%"))
        self._image.add_class("pl-fig")
        self._build_inputs(look)
        self._pin = PinButton(look, pins, self._reports, self._say, "Pin this point")
        self._bar = widgets.IntProgress(min=0, max=1, value=0)
        self._bar.add_class("pl-progress")
        self._status = widgets.HTML(layout=widgets.Layout(flex="1 1 0", min_width="0"))
        self.widget = self._lay_out()
        self._changed()

    def _build_inputs(self, look: Look) -> None:
        full = widgets.Layout(width="100%")
        self._menu = ModelMenu(FIRST_MODEL)
        self._gpu = widgets.Dropdown(options=gpu_options(), value=FIRST_GPU, layout=full)
        self._network = widgets.Dropdown(options=network_options(), value="fast", layout=full)
        self._device_batch = widgets.IntSlider(value=1, min=1, max=16, layout=full)
        self._seq = widgets.SelectionSlider(
            options=[2**i for i in range(7, 18)], value=4096, layout=full
        )
        for control in (self._menu.widget, self._gpu, self._network, self._device_batch, self._seq):
            control.observe(lambda _: self._changed(), "value")
        self._precision = self._choice("precision", "bf16")
        self._recompute = self._choice("recompute", "none")
        strategies = {name: name for name in STRATEGIES}
        self._strategy = Choice(look, "scale-strategy", strategies, FIRST_STRATEGY, self._changed)
        sizes = {n: f"{n:,}" for n in DEVICES}
        self._devices = Choice(look, "scale-devices", sizes, FIRST_DEVICES, self._changed)
        self._button = look.button("Simulate this point")
        self._button.add_class("pl-action")
        self._button.add_class("pl-simulate-point")
        self._button.on_click(lambda _: self._clicked())

    def _choice(self, name: str, value: Any) -> Choice[Any]:
        options: dict[Any, str] = {v: v for v in CHOICES[name]}
        return Choice(self._look, f"scale-{name}", options, value, self._changed)

    def _lay_out(self) -> widgets.VBox:
        look = self._look
        title = look.text(
            f'{STYLE}<div class="pl-title">See it scale</div><div class="pl-muted">The same work '
            "for every device, on more and more of them: memory and bytes predicted, time "
            "estimated, any point simulated.</div>"
        )
        fields = [
            look.field("Model", self._menu.widget), look.field("GPU", self._gpu),
            look.field("Between nodes", self._network, "8 GPUs a node"),
            look.field("Batch", self._device_batch, "sequences for each device"),
            look.field("Sequence", self._seq, "tokens"),
            look.field("Precision", self._precision.widget),
            look.field("Recompute", self._recompute.widget),
        ]  # fmt: skip
        for wide in fields[:5]:
            wide.add_class("pl-wide")
        box = widgets.Box(fields, layout=look.layout)
        box.add_class("pl-fields")
        point = widgets.Box(
            [
                look.field("Strategy", self._strategy.widget),
                look.field("Devices", self._devices.widget),
            ],
            layout=look.layout,
        )
        point.add_class("pl-split")
        line = widgets.HBox(
            [self._button, self._pin.widget, self._bar, self._status],
            layout=widgets.Layout(align_items="center", grid_gap="12px", margin="8px 0 4px"),
        )
        root = widgets.VBox(
            [title, box, self._image, self._ends, point, line, self._why, self._found, self._error],
            layout=look.layout,
        )
        root.add_class("pl-panel")
        root.add_class("pl-scale")
        return root

    # What a person, or another panel, asks of it. Everything here returns at once.

    def offer(self, model: Model) -> None:
        """Adds a model to choose from."""
        self._menu.offer(model)

    def wait(self, timeout: float | None = None) -> None:
        """Waits for what was asked for to be shown."""
        self._worker.wait(timeout)
        self._simulation.wait(timeout)
        self._worker.wait(timeout)

    def close(self) -> None:
        """Stops what runs and takes the panel off the page."""
        self._simulation.stop()
        self._worker.close()
        close_all(self.widget)

    def _changed(self) -> None:
        if hasattr(self, "widget"):  # not while it is being made
            self._worker(self._update)

    def _clicked(self) -> None:
        if self._simulation.running:
            self._simulation.stop()
            self._button.disabled = True
            return
        try:
            work = self._asked()
            plan = plan_at(work, self._strategy.value, self._devices.value)
        except ValueError as error:
            self._say(str(error))
            return
        self._error.value = ""

        def keep(report: Report) -> None:
            if work == self._work:
                self.simulated.append((plan.strategy, report))
                self._worker(self._update)

        # First, since a small simulation is over before this returns.
        self._button.description, self._bar.value = "Stop", 0
        self._simulation.start(work.model, plan, keep)

    # In threads of their own.

    def _asked(self) -> Work:
        model = self._menu.model
        return Work(
            model, self._device_batch.value, min(self._seq.value, model.context),
            self._precision.value, self._recompute.value,
        )  # fmt: skip

    def _update(self) -> None:
        work = self._asked()
        hardware = Hardware(self._gpu.value, interconnect=self._network.value)
        if work != self._work:
            self._simulation.stop()
            self.simulated = []
        if (work, hardware) != (self._work, self._hardware):
            self.curves, ends = curves(work, hardware, "cuda")
            self._work, self._hardware = work, hardware
            self._ends.value = "".join(
                f'<div class="pl-notice"><b>{html.escape(name)}</b> goes no further: '
                f"{html.escape(why)}</div>"
                for name, why in ends.items()
            )
            self._error.value = ""
        self._draw(work)

    def _draw(self, work: Work) -> None:
        gpu = GPUS[self._gpu.value]
        words = (
            f"predicted and estimated · {work.model.name} · {work.device_batch} × {work.seq:,} for "
            f"each device · {work.precision} · adamw"
        )
        marks = [(strategy, point_of(report)) for strategy, report in self.simulated]
        self._image.value = picture(
            plot_scale(
                self.curves, self._strategy.value, words, memory_bytes=gpu.memory_bytes,
                device=short(gpu.title), simulated=marks,
            )
        )  # fmt: skip
        self._show_plan(work)
        self._found.value = "".join(self._checked(*found) for found in self.simulated)

    def _show_plan(self, work: Work) -> None:
        """What would be simulated, or why it cannot be."""
        try:
            plan: Plan | None = plan_at(work, self._strategy.value, self._devices.value)
            reason = ""
        except ValueError as error:
            plan, reason = None, str(error)
        reason = reason or work.model.why_not_trainable or ""
        self._button.disabled = bool(reason)
        self._button.tooltip = reason or "Run the strategy's own code on fake tensors"
        self._point = plan
        self._pin.refresh()
        words = f'<div class="pl-notice">{html.escape(str(plan))}</div>' if plan else ""
        self._why.value = f'{words}<div class="pl-why">{html.escape(reason)}</div>'

    def _reports(self) -> list[Report]:
        """The chosen point: simulated if it was, else predicted."""
        if self._work is None or self._point is None:
            return []
        found = [report for _, report in self.simulated if report.plan == self._point]
        predicted = prediction(self._work.model, self._point, "cuda") if not found else None
        return found[-1:] or ([predicted] if predicted is not None else [])

    def _checked(self, strategy: str, report: Report) -> str:
        found, devices = point_of(report), report.plan.devices
        same = [p for p in self.curves.get(strategy, []) if p.devices == devices]
        if not same:
            return ""
        (point,) = same
        peak = _apart(point.peak_bytes, found.peak_bytes)
        sent = _apart(sum(point.sent_bytes.values()), sum(found.sent_bytes.values()))
        return (
            f'<div class="pl-sum"><b>{html.escape(strategy)} on {devices:,}</b>: peak {peak}; sent '
            f"per step {sent}.</div>"
        )

    def _told(self, done: int, total: int, words: str) -> None:
        self._bar.max = max(1, total)
        self._bar.value = done
        self._say(f"Simulating: {words} ({done:,} of {total:,})")

    def _ended(self) -> None:
        self._button.description = "Simulate this point"
        self._button.disabled = False
        self._bar.value = 0
        self._say("")

    def _say(self, message: str) -> None:
        self._status.value = f'<div class="pl-status">{html.escape(message)}</div>'

    def _show_error(self, error: BaseException) -> None:
        self._error.value = error_words(error)


def _apart(predicted: int, simulated: int) -> str:
    """Both figures, and how far they are apart."""
    if predicted == simulated:
        return f"simulated {in_words(simulated)}, predicted the same to the byte"
    by = f"{100 * (predicted - simulated) / simulated:+.2f} %" if simulated else "more than nothing"
    return (
        f"simulated {in_words(simulated)}, predicted {in_words(predicted)} ({by.replace('-', '−')})"
    )
