"""The pipeline axis: consecutive layers on consecutive ranks (GPipe, arXiv:1811.06965).

    GPipe   rank 0  F0 F1 F2 F3 .. .. B0 B1 B2 B3    all forwards, then all backwards:
            rank 1  .. F0 F1 F2 F3 B0 B1 B2 B3 ..    activations of all micro-batches
    1F1B    rank 0  F0 F1 .. B0 F2 B1 F3 B2 .. B3    a backward as soon as there is one:
            rank 1  .. F0 B0 F1 B1 F2 B2 F3 B3 ..    of at most (pp - rank) micro-batches

Micro-batches keep the ranks busy; what stays idle is the bubble, (p-1)/(m+p-1) of the time for p
ranks and m micro-batches. Naive model parallelism is the case m = 1: one rank works, the others
wait. The zero-bubble schedules (Qi et al., arXiv:2401.10241) split backward into the gradient of
the input, which the neighbour waits for, and that of the weights, which fills the gaps.

Stages and schedules are torch.distributed.pipelining's. Shapes are given to it beforehand:
inferring them would run an extra forward and backward pass in the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)

from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.stages import ONE_STAGE_A_RANK, rank_of_stage, stage_count

SCHEDULES: dict[str, type] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "loopedbfs": ScheduleLoopedBFS,
    "interleaved": ScheduleInterleaved1F1B,
    "zb": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
    "dualpipev": ScheduleDualPipeV,
}
Phase = Callable[..., AbstractContextManager[None]]
Loss = Callable[[Tensor, Tensor], Tensor]


class TimedStage(PipelineStage):
    """A stage that marks each of its forward, backward and weight passes."""

    phase: Phase

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """The forward pass of one micro-batch."""
        with self.phase("forward", fwd_chunk_id, self.stage_index):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """The backward pass of one micro-batch, of its input alone under zero bubble."""
        with self.phase("backward", bwd_chunk_id, self.stage_index):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """The weights' gradients of one micro-batch."""
        with self.phase("backward", bwd_chunk_id, self.stage_index, kind="weight"):
            return super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)


class Pipeline:
    """The stages of one rank and the schedule that drives them.

    Args:
        modules: this rank's stages by index, each wrapped for the data axis where it needs to be.
        stages: number of stages in all.
        loss: of one micro-batch; its gradients are averaged over micro-batches.
        phase: marks passes, given their kind, micro-batch and stage.
        ids, boundary, logits: shape and type of the first stage's input, of what travels between
            stages, and of the last stage's output, for one micro-batch, on the meta device.
    """

    def __init__(
        self,
        modules: dict[int, nn.Module],
        schedule: str,
        stages: int,
        micro_batches: int,
        mesh: DeviceMesh,
        device: torch.device,
        loss: Loss,
        phase: Phase,
        *,
        ids: Tensor,
        boundary: Tensor,
        logits: Tensor,
    ) -> None:
        self.has_first, self.has_last = 0 in modules, stages - 1 in modules
        built = []
        for index, module in modules.items():
            stage = TimedStage(
                module,
                index,
                stages,
                device,
                input_args=(ids if index == 0 else boundary,),
                output_args=(logits if index == stages - 1 else boundary,),
                group=mesh.get_group("pp"),
            )
            stage.phase = phase
            built.append(stage)
        kind = SCHEDULES[schedule]
        only = schedule in ONE_STAGE_A_RANK
        self._schedule: Any = kind(
            built[0] if only else built,
            micro_batches,
            loss_fn=lambda logits, targets: loss(logits, targets) / micro_batches,
            # Gradients may be on their way before the schedule would scale them.
            scale_grads=False,
        )

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor | None:
        """All micro-batches forward and backward; the mean loss on the rank of the last stage."""
        losses: list[Tensor] = []
        inputs = (tokens,) if self.has_first else ()
        wanted: dict[str, Any] = {"target": targets, "losses": losses} if self.has_last else {}
        # Outputs that are returned are logits that are kept.
        self._schedule.step(*inputs, **wanted, return_outputs=False)
        return torch.stack(losses).sum().detach() if losses else None


class TiedEmbedding:
    """An embedding that the head shares, on two stages: both copies get both gradients.

    Megatron's way (arXiv:2104.04473, section 3.2): the first and the last stage each hold the
    weight, and all-reduce its gradient once a step.

    Args:
        copies: the copies on this rank, none on ranks between.
        group: the ranks of the first and the last stage, None where that is one rank.
    """

    def __init__(self, copies: list[nn.Parameter], group: dist.ProcessGroup | None) -> None:
        self.copies, self.group = set(copies), group

    def reduce(self, held: Iterable[tuple[nn.Parameter, Tensor]]) -> None:
        """Adds up the gradients of the two copies, in place.

        Args:
            held: each weight and what this rank keeps of its gradient.
        """
        gradients = [gradient for weight, gradient in held if weight in self.copies]
        if len(gradients) == 2:
            gradients[0] += gradients[1]
            gradients[1].copy_(gradients[0])
        elif gradients:
            dist.all_reduce(gradients[0], group=self.group)


def tied_group(model: Model, plan: Plan, mesh: DeviceMesh | None) -> dist.ProcessGroup | None:
    """The group of a pipeline's first and last rank, where a tied embedding is on two of them.

    Groups are formed by all ranks together, so every rank calls it.
    """
    last = rank_of_stage(plan.schedule, stage_count(plan.pp, plan.schedule) - 1, plan.pp)
    if not model.tied or mesh is None or last == 0:
        return None
    names = mesh.mesh_dim_names or ()
    mine = None
    for pipeline in mesh.mesh.movedim(names.index("pp"), -1).reshape(-1, plan.pp).tolist():
        pair = [pipeline[0], pipeline[last]]
        group = dist.new_group(pair)
        if dist.get_rank() in pair:
            mine = group
    return mine
