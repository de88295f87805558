"""`parallab take-home`: a plan as a file, the command that trains it, other packages' settings."""

from __future__ import annotations

import argparse

from parallab.cli.arguments import (
    Commands,
    add_command,
    add_plan_flags,
    model_and_plan,
    whole_number,
)
from parallab.errors import PlanError
from parallab.take_home import TakeHome, take_home


def add_commands(commands: Commands) -> None:
    """Registers the command of this file."""
    parser = add_command(
        commands, "take-home", show,
        "the torchrun command for a plan, and its Accelerate and DeepSpeed configurations",
    )  # fmt: skip
    add_plan_flags(parser, devices=False)
    parser.add_argument("--nodes", type=whole_number(1, 65_536), default=1, metavar="N",
                        help="machines that the ranks are spread over (1)")  # fmt: skip
    parser.add_argument("--to", metavar="FOLDER", help="write the files there")


def show(args: argparse.Namespace) -> int:
    """Prints what there is, and writes the files where that was asked for."""
    found = package(args)
    print(found)
    if args.to:
        print(f"\nWritten to {args.to}: {', '.join(found.files)}")
    return 0


def package(args: argparse.Namespace) -> TakeHome:
    """What the flags ask for, written to its folder where there is one."""
    found = take_home(*model_and_plan(args), nodes=args.nodes)
    if args.to:
        try:
            found.save(args.to)
        except OSError as error:
            raise PlanError(f"{args.to} cannot be written: {error.strerror}.") from None
    return found
