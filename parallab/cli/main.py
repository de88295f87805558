"""`parallab COMMAND …`: parsing, dispatch, and what each end says and returns.

Exit status: 0 done; 1 it failed while running; 2 the request cannot work; 130 ended by Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import parallab
from parallab.cli import advise, choices, compare, lab, machine, measure, take_home, theory
from parallab.errors import (
    CorpusError,
    HardwareError,
    ModelError,
    ParallabError,
    PlanError,
    RankError,
    ReportError,
)
from parallab.rank.launched import rank_here

DONE, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130


class Parser(argparse.ArgumentParser):
    """argparse that says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with one line on standard error."""
        self.exit(REFUSED, f"{self.prog}: error: {message}\n" if rank_here() == 0 else None)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status.

    Args:
        argv: the arguments after the program's name; the process's own unless given.
    """
    replace_closed_streams()
    try:
        return dispatch(argv)
    except KeyboardInterrupt:  # before there was a command to speak for
        return INTERRUPTED


def dispatch(argv: Sequence[str] | None) -> int:
    """Parses, calls the command, and turns its errors into a line and an exit status."""
    parser = make_parser()
    args, rest = parser.parse_known_args(argv)
    if args.command is None:
        parser.print_help(sys.stderr)
        return REFUSED
    if args.command == "lab":
        args.rest = rest
    elif rest:
        args.parser.error(f"there is no argument {' '.join(rest)} here; --help lists them")
    try:
        status: int = args.call(args)
        sys.stdout.flush()
    except (ModelError, PlanError, HardwareError, CorpusError, ReportError) as error:
        return complain(args, error, REFUSED)
    except ParallabError as error:
        return complain(args, error, FAILED)
    except KeyboardInterrupt:
        return complain(args, "ended by Ctrl-C.", INTERRUPTED)
    except BrokenPipeError:
        # The reader has gone, `parallab models | head -3`. Python flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        return complain(args, error, FAILED)
    return status


def replace_closed_streams() -> None:
    """Gives the streams that the shell closed (`>&-`) to the null device; Python has None there."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def complain(args: argparse.Namespace, error: Exception | str, status: int) -> int:
    """Says in one line what went wrong; `--verbose` adds the traceback of the rank that failed."""
    if status == REFUSED and rank_here():  # torchrun's rank 0 says the same
        return status
    print(f"{args.parser.prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
    if isinstance(error, RankError) and getattr(args, "verbose", False):
        print(error.details, file=sys.stderr)
    return status


def make_parser(kind: type[Parser] = Parser, prog: str = "parallab") -> Parser:
    """Every command with its flags."""
    parser = kind(
        prog=prog,
        allow_abbrev=False,
        description="A lab for parallel training: what a strategy costs in memory and on the wire.",
    )
    parser.add_argument("--version", action="version", version=f"parallab {parallab.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for module in (lab, measure, theory, compare, advise, take_home, choices, machine):
        module.add_commands(commands)
    return parser
