"""The package's own code, shown in a notebook."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import parallab
from parallab.catalog import strategy

# Where each strategy's idea is written down.
STRATEGIES = {
    "single": ("parallel.data:DataAxis",),
    "dp": ("parallel.data:ClassicDataParallel",),
    "ddp": ("parallel.data:Replicate",),
    "zero1": ("parallel.zero:FlatShards",),
    "zero1-torch": ("parallel.zero:TorchZero1",),
    "zero2": ("parallel.zero:FlatShards",),
    "zero3": ("parallel.zero:FullyShard", "parallel.zero:shard_unit"),
    "mp": ("parallel.pipeline:Pipeline",),
    "pp": ("parallel.pipeline:Pipeline", "schedules:orders"),
    "tp": ("parallel.tensor:TensorAxis", "parallel.tensor:SplitRows"),
    "dp+pp": ("parallel.zero:FlatShards",),
    "3d": ("parallel.build:build",),
}


@dataclass(frozen=True)
class Code:
    """A piece of source; a notebook highlights it in the colours of its own theme.

    Attributes:
        place: file and lines.
        text: the source.
    """

    place: str
    text: str

    def _repr_markdown_(self) -> str:
        return f"`{self.place}`\n```python\n{self.text}\n```"

    def __repr__(self) -> str:
        return f"# {self.place}\n{self.text}"


def show_code(*things: Any) -> Code:
    """The source of functions, classes, methods, modules, or of a strategy by its name.

    >>> show_code("zero2")                                             # doctest: +SKIP

    Raises:
        TypeError: something that has no source.
        PlanError: a name that no strategy has.
    """
    if not things:
        raise TypeError("show_code needs a strategy, a function, a class or a module to show.")
    pieces = [_piece(thing) for named in things for thing in _things(named)]
    lines: dict[str, list[str]] = {}
    for file, where, _ in pieces:
        lines.setdefault(file, []).append(where)
    place = "; ".join(f"{file}, lines {', '.join(where)}" for file, where in lines.items())
    return Code(place, "\n\n".join(text for *_, text in pieces))


def _things(thing: Any) -> list[Any]:
    if not isinstance(thing, str):
        return [thing]
    places = STRATEGIES[strategy(thing).name]
    return [
        getattr(import_module(f"parallab.{module}"), name)
        for module, _, name in (place.partition(":") for place in places)
    ]


def _piece(thing: Any) -> tuple[str, str, str]:
    """A thing's file, lines and source."""
    thing = inspect.unwrap(thing) if callable(thing) else thing
    try:
        lines, first = inspect.getsourcelines(thing)
        file = Path(inspect.getsourcefile(thing) or "")
    except (TypeError, OSError):
        raise TypeError(
            f"{thing!r:.60} has no source to show; give a function, a class or a module."
        ) from None
    root = Path(parallab.__file__).parents[1]
    name = file.relative_to(root) if file.is_relative_to(root) else Path(file.name)
    first = max(first, 1)
    text = inspect.cleandoc("\n" + "".join(lines)).rstrip()
    return str(name), f"{first}–{first + len(lines) - 1}", text
