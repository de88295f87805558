"""The private directory of a cluster of ours, and those that nobody was left to remove.

The client removes it at the end, or the nursery when the client died. When both were killed at
once, the next cluster does.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from pathlib import Path

import psutil

PREFIX = "parallab-"
OWNER = "client"  # a file with the host and the process that made the directory


def make() -> Path:
    """A new directory that only this user can read, after the forgotten ones are removed."""
    remove_forgotten()
    # A short path: some systems allow little more than 100 characters for a socket's.
    directory = Path(tempfile.mkdtemp(prefix=PREFIX))
    owner = os.open(directory / OWNER, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(owner, "w") as file:
        file.write(f"{socket.gethostname()} {os.getpid()}")
    return directory


def remove_forgotten() -> None:
    """Removes this user's directories whose client has ended."""
    for directory in forgotten():
        shutil.rmtree(directory, ignore_errors=True)


def forgotten() -> list[Path]:
    """This user's directories whose client has ended."""
    found = Path(tempfile.gettempdir()).glob(f"{PREFIX}*")
    return [directory for directory in found if _is_forgotten(directory)]


def _is_forgotten(directory: Path) -> bool:
    """Whether it is ours to remove; not so whenever there is a doubt.

    Hosts may share a temporary directory, and only this host's processes are known here.
    """
    try:
        about = directory.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            return False
        host, pid = (directory / OWNER).read_text().rsplit(" ", 1)
        return host == socket.gethostname() and not psutil.pid_exists(int(pid))
    except (OSError, ValueError):
        return False
