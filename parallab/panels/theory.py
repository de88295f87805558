"""What panels ask of theory: a prediction at once, a simulation in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from parallab.errors import ParallabError
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.predict import predict
from parallab.predict.report import Kernels
from parallab.report import Report
from parallab.simulate import simulate

Failed = Callable[[BaseException], None]
Told = Callable[[int, int, str], None]


def predicted(model: Model, plan: Plan, kernels: Kernels) -> Report:
    """What the formulas say.

    Raises:
        PlanError: this model cannot be trained this way.
    """
    return predict(model, plan, kernels=kernels)


def prediction(model: Model, plan: Plan, kernels: Kernels) -> Report | None:
    """The same; None where the formulas have nothing to say of this model on this plan."""
    try:
        return predicted(model, plan, kernels)
    except ParallabError:
        return None


class Stopped(Exception):  # noqa: N818 nothing went wrong
    """The person who asked for a simulation wants it no more."""


class Simulation:
    """Simulates in the background, one plan at a time, and can be stopped.

    Args:
        told: called with (done, total, what) as it goes on.
        failed: called with what went wrong.
        ended: called last, however it ended.
    """

    def __init__(self, told: Told, failed: Failed, ended: Callable[[], None]) -> None:
        self._told, self._failed, self._ended = told, failed, ended
        self._stop = threading.Event()
        self._guard = threading.Lock()
        self._worker: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether one is under way."""
        return self._worker is not None and self._worker.is_alive()

    def start(
        self,
        model: Model,
        plan: Plan,
        done: Callable[[Report], None],
        ranks: Sequence[int] | None = None,
    ) -> bool:
        """Begins a simulation, and gives its Report to `done`. False while one is under way."""
        with self._guard:
            if self.running:
                return False
            self._stop.clear()
            self._worker = threading.Thread(
                target=self._work, args=(model, plan, done, ranks),
                name="parallab-panel-simulation", daemon=True,
            )  # fmt: skip
            self._worker.start()
            return True

    def stop(self) -> None:
        """Asks it to end at the next mark of its progress."""
        self._stop.set()

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the end."""
        with self._guard:
            worker = self._worker
        if worker is not None:
            worker.join(timeout)

    def _progress(self, done: int, total: int, words: str) -> None:
        if self._stop.is_set():
            raise Stopped
        self._told(done, total, words)

    def _work(
        self,
        model: Model,
        plan: Plan,
        done: Callable[[Report], None],
        ranks: Sequence[int] | None,
    ) -> None:
        try:
            done(simulate(model, plan, ranks=ranks, progress=self._progress))
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 a thread's traceback is seen by nobody
            self._failed(error)
        finally:
            self._ended()
