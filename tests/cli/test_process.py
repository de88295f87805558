"""`parallab` as a process: streams that are closed or go away, and what is loaded."""

import os
import subprocess
import sys

import pytest


def test_python_m_is_the_same():
    done = subprocess.run(
        [sys.executable, "-m", "parallab", "models"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("model ")
    assert done.stderr == ""


def test_a_reader_that_goes_away_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "parallab", "strategies"],
            stdout=pipe, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    assert done.stderr == b""
    assert done.returncode == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_error(closed):
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m parallab models {closed}', sys.executable],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("model ") == (closed == "2>&-")


def test_an_error_without_standard_error_stays_off_standard_output():
    done = subprocess.run(
        ["sh", "-c", '"$0" -m parallab run --batch 3 2>&-', sys.executable],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")


def test_checking_the_command_line_loads_no_torch():
    code = "import sys, parallab.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
