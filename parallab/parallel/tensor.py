"""The tensor axis: every layer's matrices split over ranks (Shoeybi et al., arXiv:1909.08053).

              x                       whole on every rank
              │ enter                 forward: nothing     backward: all-reduce
      ┌───────┴───────┐
      q k v │ gate up   by columns    a rank's heads, a rank's part of the inner width
      out   │ down      by rows       a partial sum of the whole output
      └───────┬───────┘
              │ leave                 forward: all-reduce  backward: nothing
              y

Four all-reduces a layer: attention and MLP, forward and backward. Embedding and head are split over
the vocabulary, and the loss is computed on the split logits, which are never gathered.

With sequence parallelism (Korthikanti et al., arXiv:2205.05198) the parts between, norms and
residuals, are split over the sequence: `enter` is an all-gather (backward reduce-scatter) and
`leave` a reduce-scatter (backward all-gather), as many bytes as the all-reduce they replace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from parallab.parallel.renamed import all_gather_flat, reduce_scatter_flat

SEQUENCE = 1  # the dimension of S in BSH


@dataclass(frozen=True)
class Slice:
    """The part of a whole tensor that a rank holds: `length` of dimension `dim` from `start`."""

    dim: int
    start: int
    length: int

    def of(self, whole: Tensor) -> Tensor:
        """That part of it."""
        return whole.narrow(self.dim, self.start, self.length)


class TensorAxis:
    """A rank's place on the tensor axis, and the four ways across its border.

    Args:
        mesh: has an axis "tp".
        sequence_parallel: split what lies between attention and MLP over the sequence.
    """

    def __init__(self, mesh: DeviceMesh, sequence_parallel: bool) -> None:
        self.group = mesh.get_group("tp")
        self.rank, self.size = mesh.get_local_rank("tp"), dist.get_world_size(self.group)
        self.sequence_parallel = sequence_parallel

    def enter(self, x: Tensor) -> Tensor:
        """Into a split layer: x whole (or its part of the sequence) -> x whole."""
        return self._apply(_GatherSequence if self.sequence_parallel else _SumGradient, x)

    def leave(self, partial: Tensor) -> Tensor:
        """Out of a split layer: partial sums -> their sum (or this rank's part of it)."""
        return self._apply(_ScatterSequence if self.sequence_parallel else _Sum, partial)

    def whole_gradient(self, weight: Tensor) -> Tensor:
        """A weight that every rank holds and each uses on a part of the data."""
        return self._apply(_SumGradient, weight)

    def _apply(self, function: type[torch.autograd.Function], x: Tensor) -> Tensor:
        apply: Any = function.apply
        result: Tensor = apply(x, self.group)
        return result

    def part(self, dim: int, length: int) -> Slice:
        """This rank's part of a dimension, dealt out as `torch.chunk` does."""
        chunk = -(-length // self.size)
        start = min(self.rank * chunk, length)
        return Slice(dim, start, min(chunk, length - start))


def split(decoder: Any, axis: TensorAxis) -> dict[str, Slice]:
    """Splits a decoder that has no storage yet.

    Returns:
        The part of each split weight that this rank holds, by the weight's full name: whoever fills
        them cuts it from the whole tensor's values.
    """
    slices: dict[str, Slice] = {}
    if decoder.embedding is not None:
        decoder.embedding = SplitEmbedding(decoder.embedding, axis)
        slices["embedding.tokens.weight"] = decoder.embedding.part
    for index, block in decoder.blocks.items():
        for name, part in _split_block(block, axis).items():
            slices[f"blocks.{index}.{name}"] = part
    if decoder.head is not None:
        head = decoder.head
        if axis.sequence_parallel:
            head.norm = _sequence_norm(head.norm, axis)
        slices["head.output.weight"] = _split_columns(head.output, axis)
        head.output.register_forward_pre_hook(lambda _, args: (axis.enter(args[0]),))
    return slices


def _split_block(block: Any, axis: TensorAxis) -> dict[str, Slice]:
    slices = {}
    for layer, columns, row in (
        ("attention", ("q", "k", "v"), "out"),
        ("mlp", ("gate", "up"), "down"),
    ):
        module = getattr(block, layer)
        module.register_forward_pre_hook(lambda _, args: (axis.enter(args[0]), *args[1:]))
        for name in columns:
            linear = getattr(module, name)
            if linear is not None:
                part = _split_columns(linear, axis)
                slices[f"{layer}.{name}.weight"] = part
                if linear.bias is not None:
                    slices[f"{layer}.{name}.bias"] = part
        rows = SplitRows(getattr(module, row), axis)
        setattr(module, row, rows)
        slices[f"{layer}.{row}.weight"] = rows.part
    if axis.sequence_parallel:
        block.attention_norm = _sequence_norm(block.attention_norm, axis)
        block.mlp_norm = _sequence_norm(block.mlp_norm, axis)
    if block.attention.q_norm is not None:
        # Every rank norms its own heads with the same weight.
        block.attention.q_norm = _sequence_norm(block.attention.q_norm, axis)
        block.attention.k_norm = _sequence_norm(block.attention.k_norm, axis)
    return slices


def _split_columns(linear: nn.Linear, axis: TensorAxis) -> Slice:
    part = axis.part(0, linear.out_features)
    linear.weight = nn.Parameter(part.of(linear.weight.detach()))
    if linear.bias is not None:
        linear.bias = nn.Parameter(part.of(linear.bias.detach()))
    linear.out_features = part.length
    return part


class SplitRows(nn.Module):
    """A linear layer split over its inputs: each rank's product is a partial sum."""

    def __init__(self, linear: nn.Linear, axis: TensorAxis) -> None:
        super().__init__()
        self.axis = axis
        self.part = axis.part(1, linear.in_features)
        self.weight = nn.Parameter(self.part.of(linear.weight.detach()).contiguous())
        self.bias: nn.Parameter | None = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        y = self.axis.leave(F.linear(x, self.weight))
        if self.bias is None:
            return y
        shared = self.axis.sequence_parallel
        return y + (self.axis.whole_gradient(self.bias) if shared else self.bias)


class SplitEmbedding(nn.Module):
    """An embedding split over the vocabulary: a rank looks up its own ids, others give zero."""

    def __init__(self, embedding: Any, axis: TensorAxis) -> None:
        super().__init__()
        self.axis = axis
        tokens = embedding.tokens
        self.part = axis.part(0, tokens.num_embeddings)
        self.tokens = nn.Embedding(self.part.length, tokens.embedding_dim, device="meta")
        self.positions: nn.Embedding | None = embedding.positions

    def forward(self, ids_BS: Tensor) -> Tensor:
        local = ids_BS - self.part.start
        absent = (local < 0) | (local >= self.part.length)
        found = self.tokens(local.masked_fill(absent, 0))
        x = self.axis.leave(found.masked_fill(absent.unsqueeze(-1), 0))
        if self.positions is None:
            return x
        weight = self.positions.weight[: ids_BS.shape[1]]
        if self.axis.sequence_parallel:
            weight = self.axis.whole_gradient(weight).chunk(self.axis.size)[self.axis.rank]
        return x + weight


def _sequence_norm(norm: Any, axis: TensorAxis) -> nn.Module:
    if isinstance(norm, nn.RMSNorm):
        return SharedRMSNorm(norm, axis)
    return SharedLayerNorm(norm, axis)


class SharedRMSNorm(nn.Module):
    """A norm whose ranks see different parts of the data: its weight's gradients are summed."""

    def __init__(self, norm: nn.RMSNorm, axis: TensorAxis) -> None:
        super().__init__()
        self.axis, self.width, self.eps = axis, norm.normalized_shape, norm.eps
        self.weight = norm.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.width, self.axis.whole_gradient(self.weight), self.eps)


class SharedLayerNorm(nn.Module):
    """The same with a mean and a bias."""

    def __init__(self, norm: nn.LayerNorm, axis: TensorAxis) -> None:
        super().__init__()
        self.axis, self.width, self.eps = axis, norm.normalized_shape, norm.eps
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.axis.whole_gradient(torch.stack((self.weight, self.bias)))
        return F.layer_norm(x, self.width, weight, bias, self.eps)


def split_loss(logits_BSv: Tensor, targets_BS: Tensor, axis: TensorAxis, vocab: int) -> Tensor:
    """Mean cross-entropy in fp32 of logits that are split over the vocabulary.

    Only three numbers per token travel: the largest logit, the sum of exponentials, and the
    target's logit (arXiv:1909.08053, section 3).
    """
    part = axis.part(-1, vocab)
    apply: Any = _SplitCrossEntropy.apply
    losses: Tensor = apply(logits_BSv, targets_BS, part.start, axis.group)
    return losses.mean()


class _SplitCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, start: int, group: dist.ProcessGroup
    ) -> Tensor:
        logits_Tv, targets_T = logits.flatten(0, 1).float(), targets.flatten()
        largest_T = logits_Tv.amax(dim=-1)
        dist.all_reduce(largest_T, op=dist.ReduceOp.MAX, group=group)
        shifted_Tv = logits_Tv - largest_T.unsqueeze(-1)
        local = targets_T - start
        absent = (local < 0) | (local >= logits_Tv.shape[-1])
        local = local.masked_fill(absent, 0)
        target_T = shifted_Tv.gather(-1, local.unsqueeze(-1)).squeeze(-1).masked_fill(absent, 0.0)
        weights_Tv = shifted_Tv.exp_()
        sums = torch.stack((weights_Tv.sum(dim=-1), target_T))
        dist.all_reduce(sums, group=group)
        total_T, target_T = sums
        ctx.save_for_backward(weights_Tv.div_(total_T.unsqueeze(-1)), local, absent)
        ctx.shape, ctx.dtype = logits.shape, logits.dtype
        losses_T: Tensor = total_T.log() - target_T
        return losses_T

    @staticmethod
    def backward(ctx: Any, gradient_T: Tensor) -> tuple[Tensor, None, None, None]:
        probabilities_Tv, local, absent = ctx.saved_tensors
        gradient_Tv = probabilities_Tv * gradient_T.unsqueeze(-1)
        gradient_Tv.scatter_add_(
            -1, local.unsqueeze(-1), -gradient_T.masked_fill(absent, 0.0).unsqueeze(-1)
        )
        return gradient_Tv.view(ctx.shape).to(ctx.dtype), None, None, None


class _SumGradient(torch.autograd.Function):
    """Forward nothing, backward all-reduce: Megatron's f."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _Sum(torch.autograd.Function):
    """Forward all-reduce, backward nothing: Megatron's g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        # In place: x is a product that was made to be summed, and nothing else holds it.
        dist.all_reduce(x, group=group)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _GatherSequence(torch.autograd.Function):
    """Forward all-gather over the sequence, backward reduce-scatter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gather_sequence(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _scatter_sequence(gradient, ctx.group), None


class _ScatterSequence(torch.autograd.Function):
    """Forward reduce-scatter over the sequence, backward all-gather."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _scatter_sequence(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _gather_sequence(gradient, ctx.group), None


def _gather_sequence(x_BsH: Tensor, group: dist.ProcessGroup) -> Tensor:
    # The collective joins along the first dimension, so the sequence goes there and back.
    part = x_BsH.transpose(0, SEQUENCE).contiguous()
    whole = part.new_empty(part.shape[0] * dist.get_world_size(group), *part.shape[1:])
    all_gather_flat(whole, part, group=group)
    # Contiguous once, or each layer that reads it makes and keeps a copy of its own.
    return whole.transpose(0, SEQUENCE).contiguous()


def _scatter_sequence(x_BSH: Tensor, group: dist.ProcessGroup) -> Tensor:
    whole = x_BSH.transpose(0, SEQUENCE).contiguous()
    part = whole.new_empty(whole.shape[0] // dist.get_world_size(group), *whole.shape[1:])
    reduce_scatter_flat(part, whole, group=group)
    # A pipeline sends nothing that is not contiguous.
    return part.transpose(0, SEQUENCE).contiguous()
