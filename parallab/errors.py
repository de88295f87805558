"""Every error that parallab raises on purpose, in one place.

    ParallabError
    ├── ModelError    (ValueError)    this model cannot be described or built
    ├── PlanError     (ValueError)    this plan cannot work, and nothing was started
    ├── HardwareError (ValueError)    these GPUs or links cannot be described
    ├── ReportError   (ValueError)    this file is not a Report that we can read
    ├── CorpusError   (ValueError)    this text cannot be trained on
    └── ClusterError  (RuntimeError)  engines could not be started, or were lost
        └── RankError                 a rank failed while it was running

A message is a sentence for the person who asked: what cannot work, the numbers that show it, and
what would work. The terminal prints it as it is, and a panel shows it as it is.
"""


class ParallabError(Exception):
    """Base of every error that parallab raises on purpose."""


class ModelError(ParallabError, ValueError):
    """A model that cannot be described or built."""


class PlanError(ParallabError, ValueError):
    """A plan that cannot work."""


class HardwareError(ParallabError, ValueError):
    """GPUs or links that cannot be described."""


class ReportError(ParallabError, ValueError):
    """A file or a dict that is not a Report of this schema."""


class CorpusError(ParallabError, ValueError):
    """A text that cannot be trained on."""


class ClusterError(ParallabError, RuntimeError):
    """Engines that could not be started, or were lost."""


class RankError(ClusterError):
    """A rank that failed while it was running.

    Attributes:
        rank: the rank that failed first, None where it is not known.
        details: its traceback as text, empty where it died without one.
    """

    def __init__(self, message: str, rank: int | None = None, details: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.details = details
