"""Ctrl-C at moments when half of the work would leave processes or files behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Lets Ctrl-C wait until the block, or the decorated function, is over.

    Python runs signal handlers in the main thread, so elsewhere there is nothing to hold back.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is None:  # None: not Python's, so not put back
        yield
        return
    pressed: list[Any] = []

    def hold(*press: Any) -> None:
        pressed.append(press)

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            signal.raise_signal(signal.SIGINT)
