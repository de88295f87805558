"""What a callback leaves to another thread: only the latest of what was asked, not too often."""

from __future__ import annotations

import threading
from collections.abc import Callable

MAX_FPS = 10

Job = Callable[[], None]


class Latest:
    """Does the latest job that it was given, at most ten a second; older ones are dropped.

    A slider that moves asks for far more pictures than anybody can see. Giving a job returns at
    once; the thread ends when there is nothing left to do.

    >>> redraw = Latest(print)
    >>> redraw(lambda: None)

    Args:
        failed: called with what a job raised, since nobody sees a thread's traceback.
        max_fps: jobs a second.
    """

    def __init__(self, failed: Callable[[BaseException], None], max_fps: float = MAX_FPS) -> None:
        self._failed, self._interval = failed, 1 / max_fps
        self._lock = threading.Lock()
        self._job: Job | None = None
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def __call__(self, job: Job) -> None:
        """Takes the place of whatever has not begun yet."""
        with self._lock:
            if self._closed.is_set():
                return
            self._job = job
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="parallab-panel-latest", daemon=True
                )
                self._thread.start()

    def wait(self, timeout: float | None = None) -> None:
        """Waits until everything that was asked for is done."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def close(self) -> None:
        """Begins no further job."""
        self._closed.set()

    def _work(self) -> None:
        while True:
            with self._lock:
                job, self._job = self._job, None
                if job is None or self._closed.is_set():
                    self._thread = None
                    return
            try:
                job()
            except BaseException as error:  # noqa: BLE001 whatever it is, it is shown
                self._failed(error)
            self._closed.wait(self._interval)
