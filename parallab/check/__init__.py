"""`pl.check`: exercises whose answers are measured.

exercise    what an exercise is, and what a check answers
registry    all exercises by name
judges      how answers are held against measurements: a number, a plan, a word
measure     real steps on the engines that the kernel already has
functions   a learner's function on real ranks, as text, with a deadline
rank        what those ranks' processes do
lab00 …     the exercises of each lab, with their solutions
"""

from __future__ import annotations

from typing import Any

from parallab.check.exercise import UNFILLED, Exercise, Verdict, in_words, wrong
from parallab.check.registry import exercises, no_such
from parallab.errors import ParallabError

__all__ = ["Check", "Exercise", "Verdict", "check"]


class Check:
    """Holds an answer to an exercise against what is measured.

    >>> pl.check.question("zero1-optimizer-bytes")            # doctest: +SKIP
    >>> pl.check("zero1-optimizer-bytes", 12_345)             # doctest: +SKIP
    Not yet. …

    An answer is a number, a Plan, a Report, a function or a short text, as the question says; `...`
    is not filled in yet. Whatever it is, a `Verdict` comes back, never an error.
    """

    def __call__(self, name: Any, answer: Any = ...) -> Verdict:
        exercise = exercises().get(name) if isinstance(name, str) else None
        if exercise is None:
            return wrong(no_such(name))
        if answer is ...:
            return wrong(UNFILLED)
        try:
            return exercise.judge(answer)
        except ParallabError as error:
            return wrong(str(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001 an answer may break in any way
            return wrong(f"This answer cannot be checked: {in_words(error)}.")

    def question(self, name: str) -> Exercise:
        """The exercise, to be shown: its question, and a hint to unfold.

        Raises:
            ValueError: there is none of this name.
        """
        if name not in exercises():
            raise ValueError(no_such(name))
        return exercises()[name]

    def hint(self, name: str) -> str:
        """Where to look."""
        return self.question(name).hint

    def solution(self, name: str) -> Any:
        """An answer that passes; `pl.show_code` shows a function's."""
        return self.question(name).solution()

    def __repr__(self) -> str:
        return f"<parallab check: {', '.join(exercises())}>"


check = Check()
