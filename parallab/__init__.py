"""parallab: a lab for parallel training. See README.md for the tour.

Importing it is quick: torch, widgets and ipyparallel are loaded when a name needs them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from parallab.errors import (
    ClusterError,
    CorpusError,
    HardwareError,
    ModelError,
    ParallabError,
    PlanError,
    RankError,
    ReportError,
)
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.progress import Replay
from parallab.report import Report

if TYPE_CHECKING:
    from parallab.advise import advise
    from parallab.check import check
    from parallab.classroom import Classroom
    from parallab.cluster import Cluster
    from parallab.hardware import Hardware
    from parallab.panels import Lab
    from parallab.panels.study import Scaling
    from parallab.predict import predict
    from parallab.simulate import simulate
    from parallab.source import show_code
    from parallab.sweep import ranking, summary, sweep
    from parallab.take_home import take_home

__version__ = "0.1.0"

__all__ = [
    "Classroom",
    "Cluster",
    "ClusterError",
    "CorpusError",
    "Hardware",
    "HardwareError",
    "Lab",
    "Model",
    "ModelError",
    "ParallabError",
    "Plan",
    "PlanError",
    "RankError",
    "Replay",
    "Report",
    "ReportError",
    "Scaling",
    "advise",
    "check",
    "predict",
    "ranking",
    "show_code",
    "simulate",
    "summary",
    "sweep",
    "take_home",
]

_LAZY = {
    "Classroom": "parallab.classroom",
    "Cluster": "parallab.cluster",
    "Hardware": "parallab.hardware",
    "Lab": "parallab.panels",
    "Scaling": "parallab.panels.study",
    "advise": "parallab.advise",
    "check": "parallab.check",
    "predict": "parallab.predict",
    "ranking": "parallab.sweep",
    "show_code": "parallab.source",
    "simulate": "parallab.simulate",
    "summary": "parallab.sweep",
    "sweep": "parallab.sweep",
    "take_home": "parallab.take_home",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'parallab' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext parallab`: adds the line magic `%parallab`, see `parallab.magic`."""
    from parallab import magic

    magic.load(shell)


class _Package(ModuleType):
    """Keeps `pl.advise` the function: loading the file of that name would put its module there."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _LAZY or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
