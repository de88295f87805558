"""`parallab doctor` and `bench`: whether a lab works on this machine, and how fast it is."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from parallab.cli.arguments import Commands, add_command, json_target, whole_number, write_json


def add_commands(commands: Commands) -> None:
    """Registers the commands of this file."""
    parser = add_command(
        commands, "doctor", examine, "whether a lab works on this machine, and what helps"
    )
    _add_json(parser)
    parser = add_command(
        commands, "bench", measure, "what this machine does, and what the meters cost on it"
    )
    parser.add_argument("--devices", type=whole_number(2, 64), default=4, metavar="N",
                        help="ranks (4)")  # fmt: skip
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto",
                        help="where the ranks run (auto: free GPUs, else the CPU)")  # fmt: skip
    parser.add_argument("--rounds", type=whole_number(1, 10_000), default=20, metavar="N",
                        help="how often everything is done; medians count (20)")  # fmt: skip
    _add_json(parser)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=json_target, metavar="FILE",
                        help="write what was found; - is standard output, alone there")  # fmt: skip


def examine(args: argparse.Namespace) -> int:
    """Prints each finding as it is made; 1 where something keeps a lab from working."""
    from parallab import doctor

    findings = []
    for finding in doctor.examine():
        findings.append(finding)
        if args.json != "-":
            print(finding, flush=True)
    write_json(json.dumps([asdict(finding) for finding in findings]), args.json)
    return int(any(finding.state == "bad" for finding in findings))


def measure(args: argparse.Namespace) -> int:
    """Prints what was measured."""
    from parallab.bench import bench

    found = bench(args.devices, args.device, args.rounds)
    if args.json != "-":
        print(found)
    write_json(json.dumps(found.to_dict()), args.json)
    return 0
