"""What an exercise is, and what a check answers."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Read on white and on black; the words say the same without any colour.
GREEN, RED = "#009E73", "#D55E00"
UNFILLED = (
    "Nothing is filled in yet: write your answer in place of the three dots, and run the cell "
    "again."
)


@dataclass(frozen=True)
class Verdict:
    """What a check found, in words.

    Attributes:
        passed: whether the answer is right.
        words: what was measured, and how the answer compares.
    """

    passed: bool
    words: str

    @property
    def title(self) -> str:
        """The first word: right or not."""
        return "Right." if self.passed else "Not yet."

    def _repr_html_(self) -> str:
        colour = GREEN if self.passed else RED
        return (
            f'<div style="border-left: 4px solid {colour}; padding: 4px 12px; max-width: 100ch">'
            f'<b style="color: {colour}">{self.title}</b> {html.escape(self.words)}</div>'
        )

    def __repr__(self) -> str:
        return f"{self.title} {self.words}"


def right(words: str) -> Verdict:
    """A green verdict."""
    return Verdict(True, words)


def wrong(words: str) -> Verdict:
    """A red verdict."""
    return Verdict(False, words)


def in_words(error: BaseException) -> str:
    """An error that somebody's own class raised, which may fail to say what it is."""
    try:
        return f"{type(error).__name__}: {error}"[:400]
    except Exception:  # noqa: BLE001
        return type(error).__name__


Judge = Callable[[Any], Verdict]


@dataclass(frozen=True)
class Exercise:
    """A question that a measurement answers.

    Attributes:
        name: what `pl.check` calls it: zero1-optimizer-bytes.
        lab: the notebook that asks it: 02_zero.
        question: one paragraph.
        judge: measures, and holds an answer against that. It never sees `...`, and need not guard
            against what it raises.
        solution: a right answer: a number, a Plan, a Report, a function or a short text.
        hint: where to look.
    """

    name: str
    lab: str
    question: str
    judge: Judge
    solution: Callable[[], Any]
    hint: str

    def _repr_html_(self) -> str:
        return (
            f'<div style="border-left: 4px solid #0072B2; padding: 4px 12px; max-width: 100ch">'
            f"<b>{html.escape(self.name)}</b><br>{html.escape(self.question)}"
            f"<details><summary>A hint</summary>{html.escape(self.hint)}</details></div>"
        )

    def __repr__(self) -> str:
        return f"{self.name}: {self.question} Hint: pl.check.hint({self.name!r})"
