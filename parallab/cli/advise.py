"""`parallab advise`: which strategy for a model on some hardware, and why."""

from __future__ import annotations

import argparse
import functools
import json
from typing import TYPE_CHECKING, Any

from parallab.cli.arguments import (
    DEFAULT_DEVICES,
    DEFAULT_MODEL,
    Commands,
    add_command,
    add_model_flag,
    json_target,
    one_of,
    whole_number,
    write_json,
)
from parallab.datasheets import GPUS, LINKS, NETWORKS, preset_of
from parallab.models.spec import Model
from parallab.plan import CHOICES
from parallab.units import GIB

if TYPE_CHECKING:
    from parallab.advise.advice import Advice


def add_commands(commands: Commands) -> None:
    """Registers the command of this file."""
    parser = add_command(
        commands, "advise", give_advice,
        "strategies for a model on some hardware, ranked, with reasons",
    )  # fmt: skip
    add_model_flag(parser)
    where = parser.add_argument_group("on what")
    where.add_argument("--gpu", type=functools.partial(one_of, "GPU", known=GPUS), metavar="NAME",
                       help=f"one of {', '.join(GPUS)} (this machine)")  # fmt: skip
    where.add_argument("--nodes", type=whole_number(), default=1, metavar="N",
                       help="machines (1)")  # fmt: skip
    where.add_argument("--gpus-per-node", type=whole_number(), default=8, metavar="N",
                       help="GPUs in each (8)")  # fmt: skip
    where.add_argument("--interconnect", default="fast", metavar="NAME|GBITS",
                       help=f"between nodes: {', '.join(NETWORKS)}, or the Gb/s of a node "
                            "(fast)")  # fmt: skip
    where.add_argument("--link", type=functools.partial(one_of, "link", known=LINKS),
                       metavar="NAME",
                       help=f"inside a node: {', '.join(LINKS)} (the GPU's own)")  # fmt: skip
    where.add_argument("--devices", type=whole_number(), metavar="N",
                       help="without --gpu: ranks on this machine (its free GPUs, or "
                            f"{DEFAULT_DEVICES} on the CPU)")  # fmt: skip
    where.add_argument("--free", type=_free, metavar="GIB[,GIB…]",
                       help="what others leave of each GPU, in GiB: one number, or one for each "
                            "(all of it)")  # fmt: skip
    where.add_argument("--headroom", type=float, default=0.1, metavar="PART",
                       help="part of it that no plan is to fill (0.1)")  # fmt: skip

    step = parser.add_argument_group("one step")
    step.add_argument("--batch", type=whole_number(), metavar="N",
                      help="sequences over all GPUs (about a million tokens; on this machine 4 for "
                           "each rank)")  # fmt: skip
    step.add_argument("--seq", type=whole_number(), metavar="N",
                      help="tokens per sequence (4096; on this machine 128)")  # fmt: skip
    step.add_argument("--precision", choices=CHOICES["precision"],
                      help="(bf16; on this machine fp32)")  # fmt: skip
    step.add_argument("--optimizer", choices=CHOICES["optimizer"], default="adamw",
                      help="(adamw)")  # fmt: skip
    parser.add_argument("--limit", type=whole_number(1, 1000), default=10, metavar="N",
                        help="plans to name (10)")  # fmt: skip
    parser.add_argument("--json", type=json_target, metavar="FILE",
                        help="write the advice; - is standard output, alone there")  # fmt: skip


def give_advice(args: argparse.Namespace) -> int:
    """Prints the advice, or writes it as JSON."""
    advice = advice_for(args)
    if args.json != "-":
        print(advice)
    write_advice(advice, args)
    return 0


def advice_for(args: argparse.Namespace) -> Advice:
    """What the flags ask for.

    Raises:
        HardwareError, PlanError, ModelError: there can be no advice.
    """
    from parallab.advise import advise

    model = args.model or Model(DEFAULT_MODEL)
    hardware = _hardware(args) if args.gpu else _here(args)
    return advise(
        model, **hardware, headroom=args.headroom, batch=args.batch, seq=args.seq,
        precision=args.precision, optimizer=args.optimizer, limit=args.limit,
    )  # fmt: skip


def write_advice(advice: Advice, args: argparse.Namespace) -> None:
    """Writes it as JSON where that was asked for."""
    if args.json:
        write_json(json.dumps(advice.to_dict(), allow_nan=False), args.json)


def _hardware(args: argparse.Namespace) -> dict[str, Any]:
    """What the flags describe."""
    if args.devices is not None:
        args.parser.error("--devices counts ranks on this machine; with --gpu give --nodes and "
                          "--gpus-per-node.")  # fmt: skip
    names = ("gpu", "nodes", "gpus_per_node", "interconnect", "link")
    return {**{name: getattr(args, name) for name in names}, "free_bytes": args.free}


def _here(args: argparse.Namespace) -> dict[str, Any]:
    """This machine: its free GPUs where they are known, otherwise ranks that share its memory."""
    from parallab.cluster import gpus, room

    free = gpus.free()[: args.devices]
    if not free or len(free) < (args.devices or 1):
        devices = args.devices or DEFAULT_DEVICES
        return {"devices": devices, "free_bytes": args.free or room.available_bytes() // devices}
    free_bytes = args.free or [gpu.free_bytes for gpu in free]
    known = preset_of(free[0].name, free[0].total_bytes)
    if known is None or any(gpu.name != free[0].name for gpu in free):
        return {"devices": len(free), "free_bytes": free_bytes}
    return {"gpu": known, "gpus_per_node": len(free), "free_bytes": free_bytes}


def _free(text: str) -> int | list[int]:
    """GiB as bytes."""
    try:
        each = [round(float(part) * GIB) for part in text.split(",")]
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text} is not GiB, or GiB of each GPU.") from None
    return each[0] if len(each) == 1 else each
