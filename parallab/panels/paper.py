"""The same inputs for a plan on paper: any number of devices, any model, numbers on sliders."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets

from parallab.errors import ModelError
from parallab.models.spec import Model
from parallab.panels.controls import Controls
from parallab.panels.engines import UNLIMITED_BYTES, Playback
from parallab.panels.parts import Look
from parallab.panels.proposals import Choices, degrees_of
from parallab.plan import Plan, why_not
from parallab.report import Report

MAX_DEVICES = 4096
# Numbers that divide well; a slider's other positions are never wanted.
NICE = tuple(sorted({*(2**i for i in range(13)), *(3 * 2**i for i in range(11))}))
FIRST_SEQ = 32


class Paper(Playback):
    """In place of engines: nothing runs, so nothing is too much."""

    def __init__(self) -> None:
        super().__init__(Report("predicted", Model("nano"), Plan("single")))
        self.max_devices = MAX_DEVICES
        self.replayed = None

    def room(self) -> tuple[int, bool]:
        """As much as is wanted."""
        return UNLIMITED_BYTES, True


class PaperControls(Controls):
    """Inputs of the calculator.

    Greying out takes too long for a slider that moves: `refuse` does it, in another thread.
    """

    numbers = ("batch", "seq", "micro_batches")

    def __init__(self, look: Look, changed: Callable[[], None]) -> None:
        super().__init__(Paper(), look, changed)
        for name in self.numbers:
            self._boxes[name].add_class("pl-wide")

    def _number(self, name: str, layout: widgets.Layout) -> widgets.ValueWidget:
        now = self._now.get(name, 1)
        return widgets.SelectionSlider(
            options=[now], value=now, continuous_update=True, layout=layout
        )

    def add(self, text: str) -> Model:
        """Offers the model of a pasted config.json, and chooses it.

        Raises:
            ModelError: it describes none.
        """
        if not text.lstrip().startswith("{"):
            raise ModelError(
                "This is no config.json: it should begin with { and hold the model's sizes, such "
                'as {"model_type": "llama", "hidden_size": 4096, …}.'
            )
        family = Model.from_config(text).name
        model = Model.from_config(text, name=f"{family} (pasted)")
        with self._lock:
            self._show_model(model)
            self._model_chosen()
        return model

    def _show_choices(self) -> None:
        for name, slider in self._numbers.items():
            if name not in self._now:
                continue
            options = sorted({*self._nice(name), self._now[name]})
            if list(slider.options) != options:
                slider.options = options
        super()._show_choices()

    def _nice(self, name: str) -> list[int]:
        """What a slider offers: only what works."""
        now = self._now
        dp, m = degrees_of(now)["dp"], now.get("micro_batches", 1)
        if name == "batch":
            return [dp * m * n for n in NICE if n <= 1024 and dp * m * n <= 2**20]
        if name == "seq":
            most = self.model.context
            return [n for n in (*NICE, *(2**i for i in range(13, 18))) if FIRST_SEQ <= n <= most]
        return [n for n in NICE if n <= 512 and self._works(micro_batches=n, batch=dp * n)]

    def _works(self, **choices: int) -> bool:
        fits: Choices = {**self._now, **choices}
        return why_not(self.model, **fits) is None

    def refuse(self) -> None:
        """Greys out what cannot work."""
        super()._refuse()

    def _refuse(self) -> None:
        pass

    def _why_too_big(self, free_bytes: int, shared: bool) -> str | None:
        return None

    def _grey_big_models(self, free_bytes: int, shared: bool) -> None:
        pass
