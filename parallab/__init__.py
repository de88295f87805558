"""parallab: a lab for parallel training. See README.md for the tour.

Importing it is quick: torch, widgets and ipyparallel are loaded when a name needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from parallab.errors import (
    ClusterError,
    CorpusError,
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
    from parallab.cluster import Cluster
    from parallab.panels import Lab

__version__ = "0.1.0"

__all__ = [
    "Cluster",
    "ClusterError",
    "CorpusError",
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
]

_LAZY = {"Cluster": "parallab.cluster", "Lab": "parallab.panels"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'parallab' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
