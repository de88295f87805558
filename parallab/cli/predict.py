"""`parallab predict`: what a plan would cost, by closed forms, without devices."""

from __future__ import annotations

import argparse

from parallab.cli.arguments import (
    Commands,
    add_command,
    add_output_flags,
    add_plan_flags,
    add_steps_flag,
    check_outputs,
    model_and_plan,
)
from parallab.cli.measure import show


def add_commands(commands: Commands) -> None:
    """Registers the command of this file."""
    parser = add_command(
        commands, "predict", predict_report, "what each rank would spend, by closed forms, at once"
    )
    add_plan_flags(parser, devices=False)
    # Theory knows one step, which stands for all; the flag lets one line of flags serve all.
    add_steps_flag(parser, default=5)
    add_output_flags(parser)


def predict_report(args: argparse.Namespace) -> int:
    """Predicts the plan; the table goes to standard output, or the JSON in its place."""
    from parallab.predict import predict

    check_outputs(args)
    show(predict(*model_and_plan(args)), args)
    return 0
