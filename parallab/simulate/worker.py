"""What a worker's process does: `main`, with the number of its parent's process as its argument.

A line on standard input is an order, {"model", "plan", "rank"}. The answers on standard output are
lines too: {"words"} while it works, then {"step", "sizes", "torch"}, or {"error"} with a traceback,
after which it ends.
"""

from __future__ import annotations

import gc
import json
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch

from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.predict.parts import blocks_of_stage, held_stages
from parallab.simulate.layers import TRIALS, Sizes, Trace, whole_step
from parallab.simulate.rank import run

# A worker that nobody has needed for so long gives its memory back.
IDLE_SECONDS = 120
GUARD_SECONDS = 0.5


def main() -> None:
    """Takes orders until there are no more, or none has come for a while."""
    threading.Thread(target=_watch, args=(int(sys.argv[1]),), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what torch prints is no answer
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # what is imported stays: collections need not look at it

    def answer(**facts: Any) -> None:
        print(json.dumps(facts), file=answers, flush=True)

    for order in _orders():
        try:
            answer(**simulated(order, lambda words: answer(words=words)))
        except Exception:  # noqa: BLE001 whatever it is, the parent is told
            answer(error=traceback.format_exc())
            break
    os._exit(0)  # without taking torch apart, which takes longer


def simulated(order: Mapping[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """The answer to one order."""
    model, plan = Model.from_dict(order["model"]), Plan.from_dict(order["plan"])
    rank = order["rank"]
    held = held_stages(plan, plan.coordinates(rank)["pp"])
    blocks = {stage: blocks_of_stage(model, plan, stage) for stage in held}

    def simulate(some: Mapping[int, int]) -> Trace:
        part, whole = sum(some.values()), sum(blocks.values())
        say(f"rank {rank}, {part} of {whole} blocks")
        return run(model, plan, rank, some)

    step, sizes = whole_step(simulate, blocks, _trials(plan))
    return {"step": asdict(step), "sizes": sizes, "torch": torch.__version__}


def _trials(plan: Plan) -> tuple[Sizes, ...]:
    """From how many blocks the whole may follow."""
    if plan.data == "zero1-torch" or (plan.data == "replicate" and plan.pp == 1):
        # Tensors are dealt out as they fit, or fill buckets: three sizes on a line are chance.
        return ()
    # What `fully_shard` gathers ahead and reduces behind makes two blocks at either end special.
    return TRIALS[2:] if plan.data == "zero3" else TRIALS


def _orders() -> Iterator[dict[str, Any]]:
    waiting = b""
    while select.select([0], [], [], IDLE_SECONDS)[0]:
        received = os.read(0, 65536)
        if not received:
            return
        *lines, waiting = (waiting + received).split(b"\n")
        yield from map(json.loads, lines)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(GUARD_SECONDS)
    os._exit(1)
