"""A small table that a notebook and a terminal can both show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from parallab import html


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns under their headings: the first `left` flush left, numbers flush right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        cells = [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


@dataclass(frozen=True)
class Table:
    """Rows under their headings.

    >>> print(Table(("axis", "sent"), (("dp", "8.00"), ("pp", "0.25")), "In MiB"))
    In MiB
    axis  sent
    dp    8.00
    pp    0.25

    Attributes:
        head: the headings.
        rows: as many cells each.
        caption: what the figures are, and where they come from.
        left: so many columns are words, flush left; the others are numbers, flush right.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    left: int = 1

    def __str__(self) -> str:
        lines = [self.caption] if self.caption else []
        return "\n".join([*lines, aligned(self.head, self.rows, self.left)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [[escape(cell) for cell in row] for row in self.rows]
        return html.block(
            html.heading("", self.caption) if self.caption else "",
            html.table(self.head, rows, left=range(self.left)),
        )
