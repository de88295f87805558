"""The scale panel's figures without the panel: a model on more and more GPUs, in a few lines."""

from __future__ import annotations

from parallab.hardware import Hardware
from parallab.models.spec import Model
from parallab.panels.scaling import STRATEGIES, Work, curves, plan_at, point_of
from parallab.plan import Precision, Recompute
from parallab.plots.scale import Point, plot_scale
from parallab.plots.style import ReportFigure, in_words
from parallab.report import Report
from parallab.simulate import simulate
from parallab.tables import Table
from parallab.units import percent

# Where less than so much of its best speed per GPU is left, a strategy has stopped paying.
PAYS = 0.9


class Scaling:
    """One model on 8 to 4,096 GPUs, with the same work for each GPU, however many there are.

    >>> scaling = Scaling("llama-3.1-8b", seq=4096)
    >>> [point.devices for point in scaling.curves["tp"]]
    [8]

    Args:
        model: a Model, or a preset's name.
        hardware: the kind of GPU and node; how many nodes there are follows from the devices.
        device_batch: sequences for each GPU.

    Attributes:
        curves: strategy -> its points, bytes predicted and time estimated.
        ends: strategy -> why it goes no further.
        simulated: what was simulated, each with its strategy.

    Raises:
        ModelError, HardwareError: something given cannot be.
    """

    def __init__(
        self,
        model: Model | str,
        hardware: Hardware | None = None,
        *,
        device_batch: int = 1,
        seq: int = 4096,
        precision: Precision = "bf16",
        recompute: Recompute = "none",
        strategies: tuple[str, ...] = STRATEGIES,
    ) -> None:
        model = Model(model) if isinstance(model, str) else model
        self.hardware = hardware or Hardware()
        self.work = Work(model, device_batch, seq, precision, recompute)
        self.curves, self.ends = curves(self.work, self.hardware, "cuda", strategies)
        self.simulated: list[tuple[str, Report]] = []

    def simulate(self, strategy: str, devices: int) -> Report:
        """Simulates one point, and shows it in the plots from then on.

        Raises:
            PlanError: this strategy cannot use so many.
        """
        plan = plan_at(self.work, strategy, devices, self.hardware.gpus_per_node)
        report = simulate(self.work.model, plan)
        self.simulated.append((strategy, report))
        return report

    def plot(self, strategy: str = "3d") -> ReportFigure:
        """Memory, bytes and time; bytes by axis for this strategy."""
        gpu, work = self.hardware.gpu, self.work
        words = (
            f"{work.model.name} · {work.device_batch} × {work.seq:,} for each GPU · "
            f"{work.precision} · bytes predicted, time estimated"
        )
        return plot_scale(
            self.curves, strategy, words, memory_bytes=gpu.memory_bytes, device=gpu.name,
            simulated=[(name, point_of(report)) for name, report in self.simulated],
        )  # fmt: skip

    def limits(self) -> Table:
        """Where each strategy begins to fit, where it stops paying, and where it ends."""
        rows = [self._limits_of(name, points) for name, points in self.curves.items()]
        share = percent(PAYS)
        return Table(
            ("strategy", "fits from", f"pays up to ({share})", "least peak", "s a step", "ends"),
            tuple(rows),
            f"{self.work.model} on {self.hardware.gpu}, {self.work.device_batch} × "
            f"{self.work.seq:,} tokens for each: bytes predicted, times estimated",
        )

    def _limits_of(self, strategy: str, points: list[Point]) -> tuple[str, ...]:
        if not points:
            return (strategy, "–", "–", "–", "–", "never begins")
        room = self.hardware.gpu.memory_bytes * (1 - self.hardware.headroom)
        fits = next((f"{p.devices:,} GPUs" for p in points if p.peak_bytes <= room), "nowhere")
        seconds = [p.step_seconds or 0.0 for p in points]
        paying = [p for p, s in zip(points, seconds, strict=True) if s * PAYS <= min(seconds)]
        least = min(p.peak_bytes for p in points)
        shown = f"{seconds[0]:,.2f} → {seconds[-1]:,.2f}"
        end = f"at {points[-1].devices:,}" if strategy in self.ends else "–"
        return (strategy, fits, f"{paying[-1].devices:,} GPUs", in_words(least), shown, end)
