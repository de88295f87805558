"""The catalogue: what the terminal, the panel and the parametrised tests read."""

import dataclasses
from typing import get_args

import pytest

import parallab as pl
from parallab.catalog import STRATEGIES, DataAxis, strategy

ISSUED = ["single", "dp", "ddp", "zero1", "zero1-torch", "zero2", "zero3"]


def test_the_strategies_that_scripts_rely_on_are_there():
    assert set(ISSUED) <= set(STRATEGIES)


@pytest.mark.parametrize("name", STRATEGIES)
def test_row_is_complete(name):
    row = strategy(name)
    assert row.name == name
    for field in ("title", "idea", "source", "implementation"):
        assert getattr(row, field).strip() == getattr(row, field) != ""
    assert row.idea.endswith(".")
    assert row.data in get_args(DataAxis)
    assert set(row.axes) <= {"dp", "pp", "tp"}
    assert row.zero in (0, 1, 2, 3)


@pytest.mark.parametrize("name", STRATEGIES)
def test_row_makes_a_plan(name):
    plan = pl.Plan(name)
    assert plan.data == strategy(name).data


def test_rows_are_frozen_and_titles_differ():
    titles = [row.title for row in STRATEGIES.values()]
    assert len(titles) == len(set(titles))
    with pytest.raises(dataclasses.FrozenInstanceError):
        strategy("ddp").name = "other"


@pytest.mark.parametrize("name", ["zero4", "DDP", "", None, 3, {}])
def test_unknown(name):
    with pytest.raises(pl.PlanError, match="There is no strategy called"):
        strategy(name)
