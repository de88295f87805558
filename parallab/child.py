"""A Python process of our own, which takes orders on its standard input and answers them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import parallab


def start(boot: str, *arguments: str, log: IO[bytes] | int) -> subprocess.Popen[bytes]:
    """Starts an interpreter that computes on one core of the CPU, and nowhere else.

    Args:
        boot: the code that it runs.
        log: where its standard error goes.
    """
    places = [str(Path(parallab.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        # -P: what lies in the working directory, such as a torch.py, is none of its modules.
        [sys.executable, "-P", "-c", boot, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, places)),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        },
        start_new_session=True,  # no signals from this terminal
    )
