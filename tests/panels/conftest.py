"""Labs over made-up runs."""

from __future__ import annotations

import pytest

from parallab.panels import Lab
from parallab.panels import run as run_module
from tests.panels.reach import LONG
from tests.synthetic import FakeRunner


@pytest.fixture
def make(monkeypatch):
    """Makes labs over made-up runs, and closes them."""
    monkeypatch.setattr(run_module, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(run_module, "RESEND_AFTER_SECONDS", ())
    labs: list[Lab] = []

    def build(runner=None, **options) -> Lab:
        labs.append(Lab(runner=runner or (None if options else FakeRunner()), **options))
        return labs[-1]

    yield build
    for lab in labs:
        lab.close()
        lab.panel.wait(LONG)
