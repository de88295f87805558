"""`%parallab run --model mini --strategy zero3`: the terminal's words in a notebook.

    %load_ext parallab
    report = %parallab run --model micro --strategy zero2 --steps 10

The commands and flags are those of `parallab`, read by the same parser. What a command finds is the
line's value, which a notebook shows: a Report, Advice, a Verification. Runs use the engines that
the notebook's panels have, or start them once and keep them. Interrupting the kernel ends a run
after its current step. What goes wrong is one sentence, and ends the cell.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from parallab.advise.advice import Advice
from parallab.cli import advise as cli_advise
from parallab.cli import take_home as cli_take_home
from parallab.cli.arguments import check_outputs, model_and_plan
from parallab.cli.main import Parser, make_parser
from parallab.cli.measure import check_room, write
from parallab.cli.watch import follow
from parallab.errors import ClusterError, ModelError, ParallabError, PlanError
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.report import Report
from parallab.take_home import TakeHome

if TYPE_CHECKING:
    from parallab.cluster import Cluster
    from parallab.cluster.places import Device
    from parallab.cluster.verification import Verification
    from parallab.panels.engines import Engines

Say = Callable[[str], None]


def load(shell: Any) -> None:
    """Registers `%parallab` with IPython."""
    from IPython.core.magic import output_can_be_silenced

    # A semicolon at the end keeps the value from being shown, as after an expression.
    shell.register_magic_function(output_can_be_silenced(line_magic), "line", "parallab")


def line_magic(line: str) -> Any:
    """Does what `parallab LINE` does in a terminal, and returns what it found."""
    try:
        words = shlex.split(line.rstrip().removesuffix(";"))
    except ValueError as error:
        raise _in_one_sentence(ParallabError(f"%parallab: {error} in this line.")) from None
    try:
        return answer(words)
    except SystemExit:  # --help and --version have been printed
        return None
    except (ParallabError, OSError) as error:
        raise _in_one_sentence(error) from None
    except KeyboardInterrupt:
        raise _in_one_sentence(KeyboardInterrupt("Interrupted.")) from None


def answer(words: list[str]) -> Any:
    """What a command finds; None for one that prints.

    Raises:
        ParallabError, OSError: it cannot be done.
        SystemExit: after help.
    """
    parser = make_parser(_Parser, "%parallab")
    args, rest = parser.parse_known_args(words)
    if args.command is None:
        parser.print_help()
        return None
    if rest and args.command != "lab":
        args.parser.error(f"there is no argument {' '.join(rest)} here; --help lists them")
    found = ANSWERS.get(args.command)
    if found is not None:
        return found(args)
    args.call(args)
    return None


class _Parser(Parser):
    """Raises what it would print: a notebook is not to end."""

    def error(self, message: str) -> NoReturn:
        raise PlanError(f"{self.prog}: {message}")


# One for each command that has a value.


def _run(args: argparse.Namespace) -> Report:
    check_outputs(args)
    model, plan = _trainable(args)
    check_room(model, plan, device=args.device)
    with _progress() as say, _cluster(plan, args.device, say) as cluster:
        run = cluster.submit(
            model, plan, args.steps, seed=args.seed, text=args.text, trace_every=args.trace_every
        )
        try:
            # A terminal has a bar instead.
            report, _ = follow(run, None if sys.stderr.isatty() else say)
        except KeyboardInterrupt:  # the second time
            cluster.recover()
            raise ClusterError("The run was ended in the middle of a step.") from None
        finally:
            if run.report.steps:  # of a run that failed, what was finished
                write(run.report, args)
    return report


def _verify(args: argparse.Namespace) -> Verification:
    model, plan = _trainable(args)
    check_room(model, plan, plan.alone(), device=args.device)
    with _progress() as say, _cluster(plan, args.device, say) as cluster:
        say(f"{plan.devices} ranks train {model.name}, and then one of them alone.")
        try:
            found = cluster.verify(model, plan, steps=args.steps, seed=args.seed, text=args.text)
        except KeyboardInterrupt:
            raise ClusterError("The verification was interrupted.") from None
        say(f"{args.steps} steps compared.")
    return found


def _predict(args: argparse.Namespace) -> Report:
    from parallab.predict import predict

    check_outputs(args)
    report = predict(*model_and_plan(args))
    write(report, args)
    return report


def _simulate(args: argparse.Namespace) -> Report:
    from parallab.simulate import simulate

    check_outputs(args)
    model, plan = model_and_plan(args)
    with _progress() as say:
        report = simulate(
            model, plan, progress=lambda done, total, words: say(f"{words} {done} of {total}.")
        )
    write(report, args)
    return report


def _advise(args: argparse.Namespace) -> Advice:
    advice = cli_advise.advice_for(args)
    cli_advise.write_advice(advice, args)
    return advice


def _take_home(args: argparse.Namespace) -> TakeHome:
    return cli_take_home.package(args)


def _lab(_: argparse.Namespace) -> NoReturn:
    raise PlanError("%parallab lab: you are in a notebook already; pl.Lab() shows the panels here.")


ANSWERS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "run": _run,
    "verify": _verify,
    "predict": _predict,
    "simulate": _simulate,
    "advise": _advise,
    "take-home": _take_home,
    "lab": _lab,
}


def _trainable(args: argparse.Namespace) -> tuple[Model, Plan]:
    """What the flags describe, before engines are started for nothing."""
    model, plan = model_and_plan(args)
    if model.why_not_trainable:
        raise ModelError(model.why_not_trainable)
    return model, plan


@contextmanager
def _cluster(plan: Plan, device: Device, say: Say) -> Iterator[Cluster]:
    """The notebook's engines, kept from its panels for as long as the block runs."""
    from parallab.cluster import Cluster

    with _engines(device).claim(plan.devices, say) as cluster:
        assert isinstance(cluster, Cluster)
        yield cluster


def _engines(device: Device) -> Engines:
    from parallab.panels.engines import at_hand, shared

    found = at_hand()
    return found if device in ("auto", found.kernels) else shared(device)


@contextmanager
def _progress() -> Iterator[Say]:
    """One changing line below the cell, or in the terminal."""
    from IPython.display import DisplayHandle

    from parallab.cli.watch import status_line

    if sys.stderr.isatty():
        with status_line() as say:
            yield say
        return
    line: Any = DisplayHandle()  # type: ignore[no-untyped-call, unused-ignore]
    shown = ""

    def show(words: str) -> None:
        nonlocal shown
        if words != shown:
            (line.update if shown else line.display)({"text/plain": words}, raw=True)
            shown = words

    yield show


def _in_one_sentence(error: BaseException) -> BaseException:
    """The error, which IPython then shows without a traceback."""
    error._render_traceback_ = lambda: [" ".join(str(error).split())]  # type: ignore[attr-defined]
    return error
