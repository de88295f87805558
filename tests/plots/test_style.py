"""Units, names and colours."""

from __future__ import annotations

import pytest

from parallab.plots.style import CATEGORY_COLOURS, OPERATION_COLOURS, in_words, rank_title, unit_for


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (0, "0"),
        (512, "0.50 KiB"),
        (2**20, "1.00 MiB"),
        (2**20 - 1, "1,024 KiB"),
        (13 * 2**20, "13.0 MiB"),
        (80 * 2**30, "80.0 GiB"),
        (3 * 2**40, "3.00 TiB"),
    ],
)
def test_amounts_in_words(amount, words):
    assert in_words(amount) == words


def test_the_unit_is_the_largest_that_leaves_one():
    assert [unit_for(v).name for v in (1, 2**20, 2**30 - 1, 2**30)] == ["KiB", "MiB", "MiB", "GiB"]


def test_rank_titles():
    assert rank_title(2, "cuda:2") == "GPU 2"
    assert rank_title(2, "cpu") == "rank 2 (cpu)"
    assert rank_title(2, "") == "rank 2"


def test_colours_tell_categories_and_operations_apart():
    assert len(set(CATEGORY_COLOURS.values())) == len(CATEGORY_COLOURS) == 9
    assert len(set(OPERATION_COLOURS.values())) == len(OPERATION_COLOURS) == 11
