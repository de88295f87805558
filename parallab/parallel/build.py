"""Puts a plan together: tensor, then pipeline, then data, in this order on every rank.

A Plan's degrees multiply, and so do their transformations: first each layer's matrices are cut for
the tensor axis, then the layers are dealt out to pipeline stages, then the data axis decides what
each rank keeps of its stage's weights, gradients and optimizer state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from parallab.models.spec import Model
from parallab.parallel import tensor, zero
from parallab.parallel.clip import clip
from parallab.parallel.data import (
    ClassicDataParallel,
    DataAxis,
    Loss,
    Replicate,
    next_token_loss,
)
from parallab.parallel.mesh import coordinates
from parallab.parallel.optimizer import LEARNING_RATE, make_optimizer, optimizer_class
from parallab.parallel.pipeline import Pipeline, TiedEmbedding
from parallab.plan import Plan
from parallab.stages import stage_blocks, stage_count, stage_indices

EMBEDDING = "embedding.tokens.weight"
Phase = Callable[..., AbstractContextManager[None]]
Cut = Callable[[str, Tensor], Tensor]


class Part(Protocol):
    """What is asked of a part of the model: units that take their storage one by one."""

    def units(self) -> Iterator[tuple[str, nn.Module]]:
        """The embedding, each block, the head: names and modules."""

    def named_weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Every weight by its name in the whole model."""

    def whole_name(self, name: str) -> str:
        """What a weight of this part is called in the whole model."""

    def finish(self, device: torch.device) -> None:
        """Called when every unit has its storage."""


class Stages(nn.Module):
    """The pipeline stages of one rank, by their place in the pipeline."""

    def __init__(self, stages: dict[int, nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleDict({str(index): stage for index, stage in stages.items()})

    def units(self) -> Iterator[tuple[str, nn.Module]]:
        """The units of all stages."""
        for stage in self.stages.values():
            yield from cast(Part, stage).units()

    def named_weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The weights of all stages."""
        for stage in self.stages.values():
            yield from cast(Part, stage).named_weights()


@dataclass
class Split:
    """This rank's part of a plan, and how it runs a step.

    Attributes:
        data: what the data axis does; holds the module and the optimizer.
        pipeline: drives the stages, None where there is one.
        tied: joins the two copies of an embedding that the head shares, None where there is one.
        slices: the part of each split weight that this rank holds, by the weight's full name.
        copies: how many places beyond the data axis hold each weight's gradient.
    """

    data: DataAxis
    pipeline: Pipeline | None
    tied: TiedEmbedding | None
    slices: dict[str, tensor.Slice]
    copies: dict[nn.Parameter, int]

    def forward_backward(
        self, plan: Plan, tokens: Tensor, targets: Tensor, phase: Phase
    ) -> Tensor | None:
        """The forward and backward passes of one step on this rank.

        Args:
            tokens, targets: this rank's share, as `DataAxis.share` cut it.
            phase: marks where forward and backward begin and end, given the micro-batch.

        Returns:
            The mean loss of this rank's share, None where it computes none.
        """
        if self.pipeline is None:
            loss = _accumulate(self.data, plan, tokens, targets, phase)
        else:
            loss = self.pipeline.step(tokens, targets)
        # No pass of a micro-batch, so no span: what it sends shows as communication.
        with phase("backward", kind=""):
            self.data.reduce()
            if self.tied is not None:
                self.tied.reduce(self.data.held_gradients())
        return loss

    def update(self, plan: Plan, device: torch.device) -> None:
        """Clips the gradients where the plan says so, and steps the optimizer."""
        if plan.clip is not None:
            held = ((g, self.data.copies * self.copies[w]) for w, g in self.data.held_gradients())
            clip(held, plan.clip, device, alone=plan.devices == 1)
        self.data.update()


def build(
    model: Model,
    plan: Plan,
    mesh: DeviceMesh | None,
    device: torch.device,
    dtype: torch.dtype,
    make_part: Callable[..., nn.Module],
    materialise: Callable[..., None],
    meter: Any,
    tied: dist.ProcessGroup | None,
) -> Split:
    """This rank's part of the model, split as the plan says.

    Args:
        make_part: builds a part of the model on the meta device, given blocks, embedding and head.
        materialise: gives one unit its storage and first values, given its name and what to cut.
        meter: marks phases, and is told what a tensor is where it cannot know.
        tied: `pipeline.tied_group`.
    """
    axis = None
    if plan.tp > 1:
        assert mesh is not None
        axis = tensor.TensorAxis(mesh, plan.sequence_parallel)
    slices: dict[str, tensor.Slice] = {}
    parts: dict[int, nn.Module] = {}
    stages = stage_count(plan.pp, plan.schedule)
    blocks = stage_blocks(model, stages)
    for index in stage_indices(plan.schedule, coordinates(mesh)["pp"], plan.pp, stages):
        part = make_part(blocks=blocks[index], embedding=index == 0, head=index == stages - 1)
        if axis is not None:
            whole_name = cast(Part, part).whole_name
            slices |= {whole_name(n): held for n, held in tensor.split(part, axis).items()}
        parts[index] = part
    give_storage = partial(materialise, cut=partial(_cut, slices))
    for part in parts.values():
        _give_storage(part, plan, mesh, device, give_storage)
    loss = next_token_loss
    if axis is not None:
        loss = partial(tensor.split_loss, axis=axis, vocab=model.vocab)
    module = parts[0] if stages == 1 else Stages(parts)
    data = _data_axis(module, model, plan, mesh, meter.label, loss)
    copies = {
        weight: (1 if name in slices else plan.tp)
        * (2 if name == EMBEDDING and model.tied and stages > 1 else 1)
        for name, weight in cast(Part, module).named_weights()
    }
    if stages == 1:
        return Split(data, None, None, slices, copies)
    assert mesh is not None
    pipeline = Pipeline(
        parts, plan.schedule, stages, plan.micro_batches, mesh, device, loss, meter.phase,
        **_travelling(model, plan, axis, dtype),
    )  # fmt: skip
    return Split(data, pipeline, _tied(model, tied, parts, stages), slices, copies)


def _accumulate(
    data: DataAxis, plan: Plan, tokens: Tensor, targets: Tensor, phase: Phase
) -> Tensor | None:
    """Micro-batches one after the other, their gradients added up."""
    m = plan.micro_batches
    total = torch.zeros((), device=tokens.device)
    for i, (x, y) in enumerate(zip(tokens.chunk(m), targets.chunk(m), strict=True)):
        with data.micro_batch(last=i == m - 1):
            with phase("forward", i):
                loss = data.forward(x, y)
                if data.computes_loss:
                    loss = loss / m
                    total += loss.detach()
            with phase("backward", i):
                data.backward(loss)
                del loss
    return total if data.computes_loss else None


def _travelling(
    model: Model, plan: Plan, axis: tensor.TensorAxis | None, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Shapes of one micro-batch at the pipeline's ends and between its stages."""
    batch, seq = plan.micro_batch, plan.seq
    between = seq // plan.tp if plan.sequence_parallel else seq
    vocab = axis.part(-1, model.vocab).length if axis is not None else model.vocab
    meta = partial(torch.empty, device="meta")
    return {
        "ids": meta(batch, seq, dtype=torch.long),
        "boundary": meta(batch, between, model.hidden, dtype=dtype, requires_grad=True),
        "logits": meta(batch, seq, vocab, dtype=dtype, requires_grad=True),
    }


def _tied(
    model: Model, tied: dist.ProcessGroup | None, parts: dict[int, nn.Module], stages: int
) -> TiedEmbedding | None:
    if not model.tied:
        return None
    copies = [
        weight
        for index in (0, stages - 1)
        if index in parts
        for name, weight in cast(Part, parts[index]).named_weights()
        if name == EMBEDDING
    ]
    return TiedEmbedding(copies, tied)


def _cut(slices: dict[str, tensor.Slice], name: str, whole: Tensor) -> Tensor:
    return slices[name].of(whole) if name in slices else whole


def _give_storage(
    part: nn.Module,
    plan: Plan,
    mesh: DeviceMesh | None,
    device: torch.device,
    materialise: Callable[[nn.Module, str], None],
) -> None:
    """Fills a part unit by unit, and under ZeRO-3 shards each as soon as it is filled."""
    shard_now = plan.data == "zero3" and plan.dp > 1
    for name, unit in cast(Part, part).units():
        materialise(unit, name)
        if shard_now and name.startswith("blocks"):
            assert mesh is not None
            zero.shard_unit(unit, mesh)
    cast(Part, part).finish(device)
    if shard_now:
        assert mesh is not None
        zero.shard_unit(part, mesh)


def _data_axis(
    module: nn.Module,
    model: Model,
    plan: Plan,
    mesh: DeviceMesh | None,
    label: zero.Label,
    loss: Loss,
) -> DataAxis:
    optimizer = partial(make_optimizer, plan=plan)
    if mesh is None or plan.dp == 1:
        return DataAxis(module, optimizer, loss)
    match plan.data:
        case "dp":
            return ClassicDataParallel(module, optimizer, loss, mesh)
        case "replicate" if plan.pp == 1:
            return Replicate(module, optimizer, loss, mesh)
        case "zero1-torch":
            rate = LEARNING_RATE[plan.optimizer]
            return zero.TorchZero1(module, optimizer_class(plan), rate, loss, mesh)
        case "zero3":
            return zero.FullyShard(module, optimizer, loss, mesh)
        case _:
            # Schedules decide when a stage's backward pass is over, which DDP's reducer cannot
            # follow: with pipelines the gradients of replicas are all-reduced at the step's end.
            units = _unit_parameters(module, tied_apart=model.tied and plan.pp > 1)
            return zero.FlatShards(module, units, optimizer, loss, mesh, plan.zero, label)
    raise AssertionError(f"no data axis {plan.data!r} over several ranks")


def _unit_parameters(module: nn.Module, tied_apart: bool) -> list[list[nn.Parameter]]:
    """Each unit's parameters, every parameter once.

    Where the embedding is tied across stages, it is a unit of its own on both, so that its two
    gradients are laid out alike.
    """
    part = cast(Part, module)
    apart = {w for name, w in part.named_weights() if name == EMBEDDING} if tied_apart else set()
    seen = set(apart)
    units = [[weight] for weight in apart]
    for _, unit in part.units():
        mine = [p for p in unit.parameters() if p not in seen]
        seen.update(mine)
        units.append(mine)
    return [unit for unit in units if unit]
