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
from parallab.plan import Plan
from parallab.progress import Replay
from parallab.report import Report
from parallab.spec import Model

if TYPE_CHECKING:
    from parallab.advise import advise
    from parallab.cluster import Cluster
    from parallab.hardware import Hardware
    from parallab.panels import Lab
    from parallab.predict import predict
    from parallab.simulate import simulate

__version__ = "0.1.0"

__all__ = [
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
    "advise",
    "predict",
    "simulate",
]

_LAZY = {
    "Cluster": "parallab.cluster",
    "Hardware": "parallab.hardware",
    "Lab": "parallab.panels",
    "advise": "parallab.advise",
    "predict": "parallab.predict",
    "simulate": "parallab.simulate",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'parallab' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps `pl.advise` the function: loading the file of that name would put its module there."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _LAZY or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
