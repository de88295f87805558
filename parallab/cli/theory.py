"""`parallab predict` and `parallab simulate`: what a plan would cost, without devices."""

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
from parallab.predict.report import KERNELS


def add_commands(commands: Commands) -> None:
    """Registers the commands of this file."""
    for name, call, summary in (
        ("predict", predict_report, "what each rank would spend, by closed forms, at once"),
        ("simulate", simulate_report, "the same from the strategies' own code on fake ranks"),
    ):
        parser = add_command(commands, name, call, summary)
        add_plan_flags(parser, devices=False)
        # Theory knows one step, which stands for all; the flag lets one line of flags serve all.
        add_steps_flag(parser, default=5)
        add_output_flags(parser)
        if name == "predict":
            parser.add_argument(
                "--kernels", choices=KERNELS, default=KERNELS[0],
                help="whose tensors are kept for the backward pass: the CPU's kernels, as measured "
                "here, or CUDA's fused ones (default: %(default)s)",
            )  # fmt: skip


def predict_report(args: argparse.Namespace) -> int:
    """Predicts the plan; the table goes to standard output, or the JSON in its place."""
    from parallab.predict import predict

    check_outputs(args)
    show(predict(*model_and_plan(args), kernels=args.kernels), args)
    return 0


def simulate_report(args: argparse.Namespace) -> int:
    """Simulates the plan, with a progress bar; the rest as for predict."""
    from parallab.cli.watch import counted
    from parallab.simulate import simulate

    check_outputs(args)
    model, plan = model_and_plan(args)
    with counted() as progress:
        report = simulate(model, plan, progress=progress)
    show(report, args)
    return 0
