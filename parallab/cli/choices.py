"""`parallab models`, `strategies` and `gpus`: what there is to choose from."""

from __future__ import annotations

import argparse
import shutil
import textwrap

from parallab.catalog import STRATEGIES
from parallab.cli.arguments import Commands, add_command
from parallab.models.spec import PRESETS, Model
from parallab.tables import aligned


def add_commands(commands: Commands) -> None:
    """Registers the commands of this file."""
    add_command(commands, "models", list_models, "the models that have a name, and their sizes")
    add_command(commands, "strategies", list_strategies, "the strategies, each in a paragraph")
    add_command(commands, "gpus", list_gpus, "the GPUs of this machine, and which are free")


def list_models(_: argparse.Namespace) -> int:
    """One row per preset; the parameter counts are exact."""
    rows = []
    for name in PRESETS:
        m = Model(name)
        heads = f"{m.heads}/{m.kv_heads}" if m.kv_heads != m.heads else f"{m.heads}"
        sizes = (m.parameters, m.layers, m.hidden, heads, m.ffn, m.vocab, m.context)
        rows.append((name, *(f"{size:,}" if isinstance(size, int) else size for size in sizes)))
    head = ("model", "parameters", "layers", "hidden", "heads/kv", "ffn", "vocab", "context")
    print(aligned(head, rows))
    return 0


def list_strategies(_: argparse.Namespace) -> int:
    """One paragraph per row of the catalogue."""
    width = min(shutil.get_terminal_size().columns, 100)
    paragraphs = []
    for row in STRATEGIES.values():
        parts = (row.idea, f"Source: {row.source}.", f"Runs: {row.implementation}.")
        text = [textwrap.fill(part, width, initial_indent="  ", subsequent_indent="  ")
                for part in parts]  # fmt: skip
        paragraphs.append("\n".join((f"{row.name}: {row.title}", *text)))
    print("\n\n".join(paragraphs))
    return 0


def list_gpus(_: argparse.Namespace) -> int:
    """One row per GPU that torch can use."""
    from parallab.cluster import gpus

    found = gpus.present()
    if not found:
        print("torch can use no GPU here; ranks run on the CPU.")
        return 0
    rows = [
        (str(gpu.index), gpu.name, "yes" if gpu.free else "no",
         f"{gpu.free_bytes / 2**30:,.1f}", f"{gpu.total_bytes / 2**30:,.1f}")
        for gpu in found
    ]  # fmt: skip
    print(aligned(("gpu", "name", "free", "GiB free", "GiB in all"), rows, left=3))
    return 0
