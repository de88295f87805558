"""A learner's function on real ranks: it travels as text, and has a deadline.

Its ranks are processes of their own, forked by a host that has imported torch, and they meet in a
Gloo group: whatever the function does, the lab's engines and the kernel are none the worse.
"""

from __future__ import annotations

import ast
import atexit
import inspect
import json
import os
import selectors
import signal
import subprocess
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from parallab import child
from parallab.check.exercise import UNFILLED, Judge, Verdict, wrong
from parallab.errors import RankError

BOOT = "from parallab.check.rank import main; main()"
DEADLINE_SECONDS = 20.0
# Importing torch on a machine that is busy with other things.
START_SECONDS = 120.0
SPARE_SECONDS = 10.0


class NotAFunctionError(ValueError):
    """An answer that cannot travel to a rank; the message is a sentence."""


@dataclass(frozen=True)
class Returned:
    """What one rank's call came to.

    Attributes:
        value: what the function returned; a tensor as nested lists.
        kind: "tensor", or the name of its Python type.
        operations: operation -> {"count", "payload_bytes"}, as the communication meter saw them.
    """

    value: Any
    kind: str
    operations: dict[str, dict[str, int]]

    @property
    def words(self) -> str:
        """What was returned, for a sentence."""
        return "nothing" if self.kind == "NoneType" else f"a {self.kind}"


class JudgeRanks(Protocol):
    """Looks at what all ranks returned."""

    def __call__(self, returned: list[Returned]) -> Verdict: ...


def function_on(
    ranks: int,
    arguments: Callable[[int], Sequence[Any]],
    judge_ranks: JudgeRanks,
    *,
    takes: str,
    seconds: float = DEADLINE_SECONDS,
) -> Judge:
    """An answer that is a function, called once on each of so many ranks.

    `torch`, `dist` (torch.distributed, with a group of all ranks) and `math` are there for it.

    Args:
        arguments: a rank -> the arguments of its call; a list of numbers becomes a float64 tensor.
        judge_ranks: looks at what they returned.
        takes: how it is called, for a sentence: "a tensor".
        seconds: how long the call may take.
    """

    def judge(answer: Any) -> Verdict:
        if unfilled(answer):
            return wrong(UNFILLED)
        try:
            returned = on_ranks(answer, [list(arguments(r)) for r in range(ranks)], seconds=seconds)
        except NotAFunctionError as error:
            return wrong(f"{error} It takes {takes}.")
        except RankError as error:
            return wrong(str(error))
        return judge_ranks(returned)

    return judge


def on_ranks(
    function: Any, arguments: Sequence[Sequence[Any]], *, seconds: float = DEADLINE_SECONDS
) -> list[Returned]:
    """Calls a function on real Gloo ranks, one for each row of arguments.

    Raises:
        NotAFunctionError: it is none, or its text cannot be found.
        RankError: it raised, or was not back in time.
    """
    order = {**source_of(function), "arguments": [list(row) for row in arguments]}
    with tempfile.TemporaryDirectory() as folder, _lock:
        answers = _ask({**order, "folder": folder, "seconds": seconds}, seconds)
    for rank, answer in enumerate(answers):
        if "error" in answer:
            raise RankError(f"On rank {rank} your function failed: {answer['error']}.", rank)
    return [Returned(**answer) for answer in answers]


def unfilled(function: Any) -> bool:
    """Whether a function's body is still three dots."""
    try:
        tree = ast.parse(source_of(function)["source"]).body[0]
    except NotAFunctionError:
        return False
    assert isinstance(tree, ast.FunctionDef)
    *before, last = tree.body
    docstring = not before or isinstance(before[0], ast.Expr)
    value = last.value if isinstance(last, ast.Expr | ast.Return) else None
    dots = isinstance(value, ast.Constant) and value.value is ...
    return len(before) < 2 and docstring and dots


def source_of(function: Any) -> dict[str, str]:
    """A function's "name" and "source".

    Raises:
        NotAFunctionError: a lambda, something that is no function, or one whose text is lost.
    """
    if not inspect.isfunction(function):
        raise NotAFunctionError(f"The answer is a function, not {function!r:.60}.")
    if function.__name__ == "<lambda>":
        raise NotAFunctionError(
            "A lambda has no text of its own that could travel to the ranks: write it with def."
        )
    try:
        source = textwrap.dedent(inspect.getsource(function))
        written = isinstance(ast.parse(source).body[0], ast.FunctionDef)
    except (OSError, TypeError, SyntaxError):
        raise NotAFunctionError(
            "The text of this function cannot be found: write it with def in a cell or a file."
        ) from None
    if not written:
        raise NotAFunctionError("The answer is a plain function: write it with def, not async def.")
    return {"name": function.__name__, "source": source}


_hosts: list[subprocess.Popen[bytes]] = []
_lock = threading.Lock()


def _ask(order: Mapping[str, Any], seconds: float) -> list[dict[str, Any]]:
    """Gives an order to the host, a warm one where there is one, and waits for its answer."""
    host = _hosts.pop() if _hosts else None
    if host is None or host.poll() is not None:
        host = _start()
    try:
        assert host.stdin is not None
        host.stdin.write(json.dumps(order).encode() + b"\n")
        host.stdin.flush()
        # The host itself waits so long, and then tells which ranks are not back.
        line = _line(host, seconds + SPARE_SECONDS)
        if line is None:
            raise RankError(f"Your function was not back after {seconds:g} s, and was ended.")
        answers = list(json.loads(line))
    except (ValueError, BrokenPipeError):
        _end(host)
        raise RankError("Your function wrote over what its ranks had to say: leave alone the files "
                        "that it did not open.") from None  # fmt: skip
    except BaseException:
        _end(host)
        raise
    _hosts.append(host)
    return answers


def _start() -> subprocess.Popen[bytes]:
    host = child.start(BOOT, log=subprocess.DEVNULL)
    if _line(host, START_SECONDS) is None:
        _end(host)
        raise RankError("The process for your function did not start; check again.")
    return host


def _end(host: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(host.pid, signal.SIGKILL)  # and with it every rank
    host.wait()
    for pipe in (host.stdin, host.stdout):
        assert pipe is not None
        with suppress(BrokenPipeError):
            pipe.close()


@atexit.register
def dismiss() -> None:
    """Ends the process that waits for the next function."""
    with _lock:
        while _hosts:
            _end(_hosts.pop())


def _line(host: subprocess.Popen[bytes], seconds: float) -> bytes | None:
    """The next line that it writes; None where none comes in time, or no more ever."""
    assert host.stdout is not None
    deadline, line = time.monotonic() + seconds, b""
    with selectors.DefaultSelector() as selector:
        selector.register(host.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return None
            received = os.read(host.stdout.fileno(), 1 if not line else 65536)
            if not received:
                return None
            line += received
    return line
