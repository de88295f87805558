"""`parallab run` and `parallab verify`: real steps on engines."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from parallab.cli.arguments import (
    Commands,
    add_command,
    add_output_flags,
    add_plan_flags,
    add_steps_flag,
    check_outputs,
    model_and_plan,
    whole_number,
)
from parallab.errors import ClusterError, PlanError
from parallab.models.spec import Model
from parallab.plan import MAX_STEPS, Plan
from parallab.rank.launched import LaunchedRank, launched
from parallab.report import Report
from parallab.text import report_text

if TYPE_CHECKING:
    from parallab.cluster import Cluster
    from parallab.cluster.places import Device


def add_commands(commands: Commands) -> None:
    """Registers the commands of this file."""
    run = add_command(
        commands, "run", measure, "trains real steps on engines and shows what each rank spends"
    )
    add_plan_flags(run)
    add_steps_flag(run, default=5)
    run.add_argument("--trace-every", type=whole_number(1, MAX_STEPS), default=5, metavar="N",
                     help="follow memory by category in every N-th step (5)")  # fmt: skip
    add_output_flags(run)

    verify = add_command(
        commands, "verify", compare_with_one_device,
        "trains the plan and a single device on the same data and compares loss and weights",
    )  # fmt: skip
    add_plan_flags(verify)
    add_steps_flag(verify, default=3)


def measure(args: argparse.Namespace) -> int:
    """Runs the plan; the table goes to standard output, or the JSON in its place.

    Of a run that fails or is interrupted, the steps that were finished are shown and written.
    """
    from parallab.cli.watch import follow

    check_outputs(args)
    model, plan = model_and_plan(args)
    if launched():
        return measure_here(model, plan, args)
    # Whatever a library prints meanwhile must not end up in the JSON.
    with redirect_stdout(sys.stderr), engines(model, plan, device=args.device) as cluster:
        run = cluster.submit(
            model, plan, args.steps, seed=args.seed, text=args.text, trace_every=args.trace_every
        )
        failure = None
        try:
            report, interrupted = follow(run)
        except ClusterError as error:
            failure, report, interrupted = error, run.report, False
    if report.steps:
        show(report, args)
    if failure is not None:
        raise failure  # said last, after what was finished
    return 130 if interrupted else 0


def measure_here(model: Model, plan: Plan, args: argparse.Namespace) -> int:
    """Runs this process's part, as one rank of torchrun's; rank 0 shows and writes the Report."""
    check_room(model, plan, device=args.device)
    mine = LaunchedRank(model, plan, device=args.device, seed=args.seed, text=args.text,
                        trace_every=args.trace_every)  # fmt: skip
    # torchrun ends the others' ranks when one fails: what was finished is still to be written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failure: ClusterError | None = None
    interrupted = False
    with redirect_stdout(sys.stderr):
        try:
            mine.train(args.steps)
            mine.close()
        except ClusterError as error:
            failure = error
        except KeyboardInterrupt:
            interrupted = True
    if mine.report.steps:
        show(mine.report, args)
    if failure is not None:
        raise failure
    return 130 if interrupted else 0


def compare_with_one_device(args: argparse.Namespace) -> int:
    """Runs the plan beside a single device; exit status 1 where they differ."""
    if launched():
        raise PlanError("verify starts engines of its own: call it without torchrun.")
    model, plan = model_and_plan(args)
    both = (plan, plan.alone())
    with redirect_stdout(sys.stderr), engines(model, *both, device=args.device) as cluster:
        found = cluster.verify(model, plan, steps=args.steps, seed=args.seed, text=args.text)
    print(found)
    return 0 if found.ok else 1


@contextmanager
def engines(model: Model, *plans: Plan, device: Device) -> Iterator[Cluster]:
    """Engines for the first plan, ended afterwards; the others run on them one after the other.

    Raises:
        PlanError: the model does not fit; said before engines are started for nothing.
    """
    from parallab.cli.watch import status_line
    from parallab.cluster import Cluster

    check_room(model, *plans, device=device)
    with status_line() as say:
        cluster = Cluster(plans[0].devices, device, on_status=say)
    with cluster:
        yield cluster


def check_room(model: Model, *plans: Plan, device: Device) -> None:
    """Holds plans against the memory that ranks on the CPU share; GPUs' is known to engines.

    Raises:
        PlanError: the model does not fit.
    """
    from parallab.cluster import gpus, room

    if device == "cpu" or not gpus.present():
        for plan in plans:
            room.check_fits(model, plan, room.available_bytes(), shared=True)


def show(report: Report, args: argparse.Namespace) -> None:
    """Prints the Report as text, and writes it and its picture where they were asked for."""
    print(report_text(report), file=sys.stderr if args.json == "-" else sys.stdout)
    write(report, args)


def write(report: Report, args: argparse.Namespace) -> None:
    """Writes the Report and its picture where they were asked for."""
    if args.json == "-":
        print(json.dumps(report.to_dict()))
    elif args.json:
        report.save(args.json)
    if args.plot:
        report.plot().savefig(Path(args.plot))
