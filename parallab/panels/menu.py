"""The drop-down of models that every panel has."""

from __future__ import annotations

import ipywidgets as widgets

from parallab.models.spec import PRESETS, Model


class ModelMenu:
    """The presets, and whatever models are offered besides, the smallest first.

    Attributes:
        widget: the drop-down; its value is a name.
    """

    def __init__(self, first: str) -> None:
        self._named = {name: Model(name) for name in PRESETS}
        self.widget = widgets.Dropdown(
            options=self._options(), value=first, layout=widgets.Layout(width="100%")
        )

    @property
    def model(self) -> Model:
        """The chosen model."""
        return self._named[self.widget.value]

    @property
    def models(self) -> list[Model]:
        """All of them, in the order shown."""
        return sorted(self._named.values(), key=lambda model: model.parameters)

    def offer(self, model: Model) -> None:
        """Adds a model, or puts it in the place of one of its name; the choice stays."""
        self._show(model, self.widget.value)

    def choose(self, model: Model) -> None:
        """Adds a model, and chooses it."""
        self._show(model, model.name)

    def _show(self, model: Model, chosen: str) -> None:
        self._named[model.name] = model
        self.widget.options = self._options()
        self.widget.value = chosen

    def _options(self) -> list[tuple[str, str]]:
        return [(f"{m.name} · {_count(m.parameters)} parameters", m.name) for m in self.models]


def _count(parameters: int) -> str:
    for size, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= size:
            return f"{parameters / size:.3g} {name}"
    return str(parameters)
