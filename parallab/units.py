"""Amounts in words, the same everywhere: a space before the unit, GiB and never GB for memory."""

from __future__ import annotations

GIB = 2**30


def gib(count: float) -> str:
    """Bytes for a sentence; MiB where they are less than one GiB.

    >>> gib(80 * GIB), gib(12.5 * 2**20)
    ('80.0 GiB', '12.5 MiB')
    """
    if count >= GIB:
        return f"{count / GIB:,.1f} GiB"
    mib = count / 2**20
    return f"{mib:,.{1 if mib < 100 else 0}f} MiB"


def percent(share: float, digits: int = 0) -> str:
    """A share of one.

    >>> percent(0.15), percent(0.004, 1)
    ('15 %', '0.4 %')
    """
    return f"{100 * share:.{digits}f} %"


def three_figures(amount: float) -> str:
    """Or all those before the point.

    >>> three_figures(13), three_figures(0.0213), three_figures(1234.5)
    ('13.0', '0.0213', '1,234')
    """
    return f"{amount:,.0f}" if amount >= 99.95 else f"{amount:#.3g}"
