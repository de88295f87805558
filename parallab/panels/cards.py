"""Which device's memory a plan is held against: a GPU by name, or so many GiB."""

from __future__ import annotations

import re
from collections.abc import Callable

import ipywidgets as widgets

from parallab.datasheets import GPUS, NETWORKS
from parallab.panels.parts import Look
from parallab.units import GIB

FIRST, OTHER = "h100", ""


class Card:
    """A drop-down of GPUs, and a field for what is none of them.

    Attributes:
        fields: the widgets.
    """

    def __init__(self, look: Look, changed: Callable[[], None]) -> None:
        full = widgets.Layout(width="100%")
        self._gpu = widgets.Dropdown(
            options=[*gpu_options(), ("another", OTHER)], value=FIRST, layout=full
        )
        self._gpu.add_class("pl-gpu")
        self._gib = widgets.BoundedFloatText(
            value=_gib(FIRST), min=0.01, max=100_000, step=1, layout=full
        )
        self.fields = [
            look.field("GPU", self._gpu), look.field("Memory", self._gib, "GiB")
        ]  # fmt: skip
        self.fields[0].add_class("pl-wide")
        self._changed = changed
        self._gpu.observe(lambda _: self._chosen(), "value")
        self._gib.observe(lambda _: self._typed(), "value")

    @property
    def memory_bytes(self) -> int:
        """What one device holds."""
        gpu = GPUS.get(self._gpu.value)
        return gpu.memory_bytes if gpu is not None else round(self._gib.value * GIB)

    @property
    def name(self) -> str:
        """What it is called."""
        gpu = GPUS.get(self._gpu.value)
        return short(gpu.title) if gpu is not None else "the device"

    def show(self, name: str) -> None:
        """Chooses a GPU."""
        self._gpu.value = name if name in GPUS else OTHER

    def _chosen(self) -> None:
        if self._gpu.value in GPUS:
            self._gib.value = _gib(self._gpu.value)
        self._changed()

    def _typed(self) -> None:
        name = self._gpu.value
        if name not in GPUS or self._gib.value != _gib(name):
            self._gpu.value = OTHER
            self._changed()


def _gib(name: str) -> float:
    return round(GPUS[name].memory_bytes / GIB, 2)


def gpu_options() -> list[tuple[str, str]]:
    """What a drop-down of GPUs offers: a label with the memory, and the name."""
    return [(f"{short(g.title)} · {g.memory_bytes / GIB:.1f} GiB", n) for n, g in GPUS.items()]


def network_options() -> list[tuple[str, str]]:
    """What a drop-down of networks between nodes offers: a label, and the name."""
    return [(network.title, name) for name, network in NETWORKS.items()]


def short(title: str) -> str:
    """A GPU's name without the memory that it is sold with, in decimal GB."""
    return re.sub(r" \d+ GB", "", title)
