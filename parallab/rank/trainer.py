"""One rank's training: from a formed process group to the record of each step."""

from __future__ import annotations

import gc
import socket
from functools import partial
from typing import Any

import torch
from torch import nn

from parallab.meter import Meter
from parallab.models.spec import Model
from parallab.parallel.build import build
from parallab.parallel.mesh import axis_names, coordinates, form_mesh
from parallab.parallel.pipeline import tied_group
from parallab.plan import Plan
from parallab.rank.corpus import Corpus
from parallab.rank.decoder import Decoder, materialise
from parallab.report import Step

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Trainer:
    """Trains one rank's part of a model, and records what each step took.

    The process group must have been formed, with `plan.devices` ranks; one device needs none.
    Steps 0 and 1 are traced, and every `trace_every`-th after 1 (0: none at all): a traced step is
    followed by memory category and is slower; the others are what the durations are taken from.

    Args:
        device: where this rank computes.
        seed: of the first weights and of the batches.
        text: path of a text file on this machine; None takes the standard library's sources.
        cap_bytes: the most that this rank may hold; more raises `torch.OutOfMemoryError`.

    Attributes:
        module, optimizer, mesh: what a person may look at afterwards; mesh is None on one device,
            and optimizer where this rank owns none.
    """

    def __init__(
        self,
        model: Model,
        plan: Plan,
        device: torch.device,
        *,
        seed: int = 0,
        text: str | None = None,
        trace_every: int = 5,
        cap_bytes: int | None = None,
    ) -> None:
        plan.check(model)
        self.plan, self.device = plan, device
        self._trace_every = trace_every
        self._next_step = 0
        self.corpus = Corpus(text, model.vocab, seed)
        self.mesh = form_mesh(plan, device)
        tied = tied_group(model, plan, self.mesh)
        axes = axis_names(self.mesh)
        if tied is not None:
            axes[tied.group_name] = "pp"
        self.meter = Meter(device, axes, cap_bytes)
        dtype = DTYPES[plan.precision]
        self.split = build(
            model,
            plan,
            self.mesh,
            device,
            dtype,
            partial(Decoder, model, plan.seq, recompute=plan.recompute == "full"),
            partial(materialise, device=device, dtype=dtype, seed=seed, model=model),
            self.meter,
            tied,
        )
        self.data = self.split.data
        self.module: nn.Module = self.data.module
        self.optimizer = self.data.optimizer
        self.meter.watch(self.module, self.optimizer)

    def step(self, traced: bool | None = None) -> Step:
        """Runs the next training step and returns its record.

        Args:
            traced: whether memory is followed; as `trace_every` says unless given.
        """
        index, self._next_step = self._next_step, self._next_step + 1
        every = self._trace_every
        if traced is None:
            traced = every > 0 and (index < 2 or index % every == 1 % every)
        batch = self.corpus.batch(index, self.plan.batch, self.plan.seq)
        with self.meter.step(index, traced):
            tokens, targets = (t.to(self.device) for t in self.data.share(*batch))
            loss = self.split.forward_backward(self.plan, tokens, targets, self.meter.phase)
            with self.meter.phase("optimizer"):
                self.split.update(self.plan, self.device)
            del tokens, targets
        return self.meter.take(None if loss is None else loss.item())

    def describe(self) -> dict[str, Any]:
        """This rank's place: rank, coords, device, host, and the digest of its text."""
        rank = self.mesh.get_rank() if self.mesh is not None else 0
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
        return {
            "rank": rank,
            "coords": coordinates(self.mesh),
            "device": name,
            "host": socket.gethostname(),
            "corpus": self.corpus.digest,
        }

    def close(self) -> None:
        """Frees the model, the optimizer and the mesh. Safe to call twice."""
        self.meter.close()
        if "data" in self.__dict__:
            self.data.close()
        for name in ("split", "data", "module", "optimizer", "mesh"):
            self.__dict__.pop(name, None)
        # FSDP and DDP hold reference cycles, and with them threads and file descriptors.
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
