"""Follows a run to its end: a progress bar, and what Ctrl-C does."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from tqdm import tqdm

from parallab.progress import Run
from parallab.report import Report, mean_loss

POLL_SECONDS = 0.05
CLEAR = "\r\x1b[K"  # to the line's start, and erase it


class Interrupts:
    """How often Ctrl-C was pressed; the second time ends everything at once."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt


@contextmanager
def counted_interrupts() -> Iterator[Interrupts]:
    """Ctrl-C is counted instead of raised, as far as this thread may decide that."""
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = signal.signal(signal.SIGINT, interrupts)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


def follow(run: Run, say: Callable[[str], None] | None = None) -> tuple[Report, bool]:
    """Waits for the end of a run, with a progress bar where standard error is a terminal.

    The first Ctrl-C stops the run after its current step.

    Args:
        say: is told in words how far the run is, for where there is no terminal.

    Returns:
        The Report of what was finished, and whether Ctrl-C ended it.

    Raises:
        ClusterError: the run failed.
        KeyboardInterrupt: a second Ctrl-C.
    """
    with counted_interrupts() as interrupts, _bar(run) as bar:
        asked = False
        while True:
            if interrupts.count and not asked:
                asked = True
                run.stop()
                bar.write("Stopping after this step; Ctrl-C again ends at once.", file=sys.stderr)
            progress = run.poll()
            if say is not None:
                say(progress.message)
            if progress.steps:
                loss = mean_loss(step.loss for step in progress.steps[-1])
                bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
                bar.update(len(progress.steps))
            if progress.finished:
                break
            time.sleep(POLL_SECONDS)
    return run.result(), asked


@contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """A function that shows one changing line, on a terminal, for as long as the block runs.

    Whoever keeps the function may go on calling it; nothing is shown then.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    shown = True

    def say(line: str) -> None:
        if shown:
            print(f"{CLEAR}{line}", end="", file=sys.stderr, flush=True)

    try:
        yield say
    finally:
        shown = False
        print(CLEAR, end="", file=sys.stderr, flush=True)


def _bar(run: Run) -> tqdm[NoReturn]:
    return tqdm(
        total=run.total_steps,
        desc=f"{run.plan.strategy} on {run.plan.devices}",
        unit="step",
        file=sys.stderr,
        disable=not sys.stderr.isatty(),
        leave=False,
        dynamic_ncols=True,
        mininterval=0,  # polls are far enough apart
    )


@contextmanager
def counted() -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on standard error, where that is a terminal: (done, total, words)."""
    with tqdm(file=sys.stderr, disable=None, leave=False) as bar:

        def progress(done: int, total: int, words: str) -> None:
            bar.total = total
            bar.set_description(words, refresh=False)
            bar.n = done
            bar.refresh()

        yield progress
