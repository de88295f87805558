"""The flags that say what to train and how: a command line in, a Model and a Plan out.

A flag that is wrong by itself is refused while parsing; what fits what is Plan's to say. Where
results are to be written is tried before anything starts, so that none is lost.
"""

from __future__ import annotations

import argparse
import difflib
import math
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from parallab.catalog import STRATEGIES
from parallab.errors import CorpusError, ModelError, ParallabError
from parallab.models.spec import PRESETS, Model
from parallab.plan import CHOICES, MAX_SEED, MAX_STEPS, Plan
from parallab.rank.corpus import check_text
from parallab.rank.launched import launched, world_size
from parallab.take_home import read_plan

FIGURE_SUFFIXES = (".png", ".pdf", ".svg")
DEFAULT_DEVICES = 4
DEFAULT_MODEL = "mini"
# A degree's flag appears with the first strategy that can use it.
AXES = {axis: None for row in STRATEGIES.values() for axis in row.axes}
PLAN_FLAGS = (
    "strategy", *AXES, "zero", "batch", "seq", "micro_batches", "schedule", "sequence_parallel",
    "precision", "recompute", "optimizer", "clip",
)  # fmt: skip
AXIS_NAMES = {"dp": "data", "pp": "pipeline", "tp": "tensor"}

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001
Group: TypeAlias = "argparse._ArgumentGroup"  # noqa: SLF001


def add_command(
    commands: Commands, name: str, call: Callable[[argparse.Namespace], int], summary: str
) -> argparse.ArgumentParser:
    """Registers a command; `call` takes the parsed arguments and returns the exit status."""
    parser = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    parser.set_defaults(call=call, parser=parser)
    return parser


def add_plan_flags(parser: argparse.ArgumentParser, devices: bool = True) -> None:
    """The flags of every command that trains, or says what training would cost.

    Args:
        devices: whether real devices are used, which may be chosen.
    """
    what = add_model_flag(parser)
    what.add_argument("--plan", type=_plan_file, metavar="FILE",
                      help="a plan.json of `parallab take-home`, or a saved Report: its model and "
                           "its plan, in place of all flags that describe them")  # fmt: skip
    what.add_argument("--text", type=_text, metavar="FILE",
                      help="text to train on (the standard library's sources)")  # fmt: skip
    what.add_argument("--seed", type=whole_number(0, MAX_SEED), default=0, metavar="N",
                      help="of weights and batches (0)")  # fmt: skip

    how = parser.add_argument_group("how it is split")
    how.add_argument("--strategy", type=_strategy, metavar="NAME",
                     help="`parallab strategies` explains them (ddp)")  # fmt: skip
    how.add_argument("--devices", type=whole_number(), metavar="N",
                     help=f"ranks (the free GPUs, or {DEFAULT_DEVICES} on the CPU)")  # fmt: skip
    for axis in AXES:
        how.add_argument(f"--{axis}", type=whole_number(), metavar="N",
                         help=f"degree of the {AXIS_NAMES[axis]} axis")  # fmt: skip
    how.add_argument("--zero", type=whole_number(0, 3), metavar="STAGE",
                     help="what the data axis of dp+pp and 3d shards: 0, 1, 2 or 3")  # fmt: skip
    how.add_argument("--schedule", choices=CHOICES["schedule"],
                     help="order of a pipeline's micro-batches (1f1b)")  # fmt: skip
    how.add_argument("--sequence-parallel", action="store_true", default=None,
                     help="split norms and residuals over the tensor axis too")  # fmt: skip
    parser.set_defaults(device="cpu")
    if devices:
        how.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto",
                         help="where the ranks run (auto: free GPUs, else the CPU)")  # fmt: skip

    step = parser.add_argument_group("one step")
    step.add_argument("--batch", type=whole_number(), metavar="N",
                      help="sequences over all ranks (2 per rank and micro-batch)")  # fmt: skip
    step.add_argument("--seq", type=whole_number(), metavar="N",
                      help="tokens per sequence (128)")  # fmt: skip
    step.add_argument("--micro-batches", type=whole_number(), metavar="N",
                      help="parts of a rank's share, added up before one update (1; in a "
                           "pipeline, 2 per rank of it)")  # fmt: skip
    for name in ("precision", "recompute", "optimizer"):
        allowed = CHOICES[name]
        step.add_argument(f"--{name}", choices=allowed,
                          help=f"{' or '.join(allowed)} ({allowed[0]})")  # fmt: skip
    step.add_argument("--clip", type=float, metavar="NORM",
                      help="scale the gradients down to this global norm (off)")  # fmt: skip
    parser.add_argument("--verbose", action="store_true",
                        help="after a failure, the failing rank's traceback")  # fmt: skip


def add_model_flag(parser: argparse.ArgumentParser) -> Group:
    """The flag of every command that is about a model."""
    what = parser.add_argument_group("what is trained")
    what.add_argument("--model", type=_model, metavar="NAME|PATH",
                      help="a preset, `parallab models` lists them; or a config.json "
                           "(mini)")  # fmt: skip
    return what


def add_steps_flag(parser: argparse.ArgumentParser, default: int) -> None:
    """How many steps to train."""
    parser.add_argument("--steps", type=whole_number(1, MAX_STEPS), default=default, metavar="N",
                        help=f"training steps ({default})")  # fmt: skip


def add_output_flags(parser: argparse.ArgumentParser) -> None:
    """Where the Report goes besides the table."""
    out = parser.add_argument_group("results")
    out.add_argument("--json", type=json_target, metavar="FILE",
                     help="write the Report; - is standard output, alone there")  # fmt: skip
    out.add_argument("--plot", type=figure_target, metavar="FILE.png",
                     help="draw memory, communication and loss")  # fmt: skip


def model_and_plan(args: argparse.Namespace) -> tuple[Model, Plan]:
    """What the flags describe.

    Raises:
        ModelError, PlanError: it cannot work.
        CorpusError: the text is shorter than one sequence.
    """
    # What is not given is Plan's to choose.
    given = {name: getattr(args, name) for name in PLAN_FLAGS if getattr(args, name) is not None}
    if args.plan is not None:
        _check_alone(args, given)
        model, plan = args.plan
    else:
        model, strategy = args.model or Model(DEFAULT_MODEL), given.pop("strategy", "ddp")
        plan = Plan(strategy, _devices(args, strategy, given), **given)
    plan.check(model)
    check_text(args.text, plan.seq)
    return model, plan


def check_outputs(args: argparse.Namespace) -> None:
    """Refuses one file for two results."""
    written: dict[Path, str] = {}
    for flag in ("json", "plot", "html", "csv"):
        name = getattr(args, flag, None)
        if name in (None, "-"):
            continue
        first = written.setdefault(Path(name).resolve(), flag)
        if first != flag:
            args.parser.error(f"--{first} and --{flag} would both write {name}; name two files.")


def whole_number(least: float = -math.inf, most: float = math.inf) -> Callable[[str], int]:
    """The type of a flag that takes a whole number; without limits, Plan has the say."""
    limits = f" from {least:,} to {most:,}" if math.isfinite(most) else ""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = None
        if number is None or not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number{limits}.")
        return number

    return parse


def _check_alone(args: argparse.Namespace, given: Mapping[str, object]) -> None:
    """Refuses flags beside `--plan` that describe a plan too."""
    beside = [*(["model"] if args.model else []), *(["devices"] if args.devices else []), *given]
    if beside:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in beside)
        args.parser.error(f"--plan names the model and the whole plan: leave out {flags}.")


def _devices(args: argparse.Namespace, strategy: str, given: Mapping[str, object]) -> int | None:
    """The number of ranks; None leaves it to Plan."""
    degrees_given = any(axis in given for axis in AXES)
    if args.devices is not None or degrees_given or not STRATEGIES[strategy].axes:
        devices: int | None = args.devices
        return devices
    if launched():
        return world_size()
    if args.device == "cpu":
        return DEFAULT_DEVICES
    from parallab.cluster import gpus

    return len(gpus.free()) or DEFAULT_DEVICES


def one_of(kind: str, name: str, known: Iterable[str]) -> str:
    """`name`, where it is one of those that are known."""
    known = list(known)
    if name in known:
        return name
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {close[0]}?" if close else f"Choose one of {', '.join(known)}."
    raise argparse.ArgumentTypeError(f"there is no {kind} called {name!r}. {hint}")


def _model(name: str) -> Model:
    """A preset, or what a Hugging Face config.json or its folder describes."""
    path = name.endswith(".json") or "/" in name or Path(name).exists()
    if name in PRESETS or not path:
        return Model(one_of("model", name, PRESETS))
    try:
        return Model.from_config(name)
    except ModelError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _plan_file(name: str) -> tuple[Model, Plan]:
    """The model and the plan that a file describes."""
    try:
        return read_plan(name)
    except ParallabError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _strategy(name: str) -> str:
    return one_of("strategy", name, STRATEGIES)


def _text(name: str) -> str:
    """A text file's absolute path: engines have another working directory."""
    try:
        check_text(name)
    except CorpusError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return str(Path(name).absolute())


def json_target(name: str) -> str:
    """The type of a flag that names a file to write JSON to, or - for standard output."""
    return name if name == "-" else writable(name)


def write_json(text: str, target: str | None) -> None:
    """Writes JSON to what `json_target` named; nowhere without one."""
    if target == "-":
        print(text)
    elif target:
        Path(target).write_text(text, encoding="utf-8")


def figure_target(name: str) -> str:
    """The type of a flag that names a picture to write."""
    if Path(name).suffix.lower() not in FIGURE_SUFFIXES:
        raise argparse.ArgumentTypeError(
            f"{name} is no picture's name: it must end in {', '.join(FIGURE_SUFFIXES)}."
        )
    return writable(name)


def writable(name: str) -> str:
    """The type of a flag that names a file to write, which is tried and left as it was."""
    path = Path(name)
    try:
        new = not path.exists()
        if not new and not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
            # Opening a pipe would wait for its reader.
            raise argparse.ArgumentTypeError(f"{name} is a pipe or device, not a file.")
        path.open("ab").close()
        if new:
            path.resolve().unlink()  # a link that led nowhere stays
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{name} cannot be written: {error.strerror}.") from None
    return name
