"""All exercises by name: the EXERCISES of each lab's file in this folder."""

from __future__ import annotations

import difflib
import functools
import pkgutil
from importlib import import_module
from pathlib import Path

from parallab.check.exercise import Exercise


@functools.cache
def exercises() -> dict[str, Exercise]:
    """Every exercise by its name, in the order of the labs."""
    files = sorted(
        module.name
        for module in pkgutil.iter_modules([str(Path(__file__).parent)])
        if module.name.startswith("lab")
    )
    found: dict[str, Exercise] = {}
    for file in files:
        for exercise in import_module(f"parallab.check.{file}").EXERCISES:
            assert exercise.name not in found, f"two exercises are called {exercise.name}"
            found[exercise.name] = exercise
    return found


def no_such(name: object) -> str:
    """The sentence about a name that no exercise has, with the names near it."""
    known = list(exercises())
    if not isinstance(name, str):
        return f"The name of an exercise is a text. There are: {', '.join(known)}."
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    listed = ", ".join(near or known)
    which = f"There is no exercise called {name[:60]!r}."
    return f"{which} {'Near it' if near else 'There'} are: {listed}."
