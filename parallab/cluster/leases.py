"""Leases on GPUs: two clusters of this machine, also of different users, do not take the same one.

A lease is a lock on a file that stands for the GPU. The operating system drops it when the process
that holds it ends, in whatever way, so no lease is ever left behind.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

# The same for every user, unlike what TMPDIR names; `_open` minds what others may have put there.
DIRECTORY = Path("/tmp/parallab-gpus")  # noqa: S108


class Lease:
    """A GPU that is ours until `release`, or until this process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Gives it back. Safe to call twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def take(name: str) -> Lease | None:
    """A lease on the GPU called `name`, None where somebody else has it."""
    descriptor = _open(name)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return Lease(descriptor)


def taken(name: str) -> bool:
    """Whether a cluster has the GPU called `name` at this moment."""
    lease = take(name)
    if lease is None:
        return True
    lease.release()
    return False


def _open(name: str) -> int:
    """Opens the GPU's file for reading, which is all that a lock needs.

    Users share the directory, so nobody may remove another's file (the sticky bit), and a link in
    a file's place is not followed.
    """
    if not DIRECTORY.exists():
        DIRECTORY.mkdir(exist_ok=True)
        DIRECTORY.chmod(stat.S_ISVTX | 0o777)
    path = DIRECTORY / f"{name}.lock"
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        pass
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o444)
    except FileExistsError:  # another cluster was quicker
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    os.fchmod(descriptor, 0o444)  # whatever the umask is
    return descriptor
