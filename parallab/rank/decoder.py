"""The decoder-only transformer that every strategy trains, built from a `Model`.

Tensor names are `Model.units()`'s. Each parameter's first value depends on the seed and its own
name only, so that a rank which holds a part of the model holds the same numbers as one device does.

Legend for shapes: B sequences, S tokens, H hidden, A heads, K key/value heads, D head_dim, V vocab.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from parallab.errors import ModelError
from parallab.models.spec import Model

INITIAL_STD = 0.02
EMBEDDING, OUTPUT = "embedding.tokens.weight", "head.output.weight"


class Decoder(nn.Module):
    """A decoder, or the consecutive part of one that a pipeline stage holds.

    It is built on the meta device, so that a part can be split before it takes memory;
    `materialise` gives a part its storage and its first values.

    Args:
        model: the sizes.
        seq: tokens per sequence, for which rotary positions are tabulated.
        recompute: keep only each block's input, and compute the rest again in backward
            (Chen et al., arXiv:1604.06174).
        blocks: indices of the blocks it holds, all unless given.
        embedding, head: whether it holds the first and the last layer.
    """

    def __init__(
        self,
        model: Model,
        seq: int,
        *,
        recompute: bool = False,
        blocks: range | None = None,
        embedding: bool = True,
        head: bool = True,
    ) -> None:
        super().__init__()
        if model.why_not_trainable:
            raise ModelError(model.why_not_trainable)
        self.model = model
        self.recompute = recompute
        with torch.device("meta"):
            self.embedding = Embedding(model) if embedding else None
            indices = range(model.layers) if blocks is None else blocks
            self.blocks = nn.ModuleDict({str(i): Block(model) for i in indices})
            self.head = Head(model) if head else None
            self.rotary = Rotary(model, seq) if model.positions == "rope" else None
        self._tie()

    def forward(self, x: Tensor) -> Tensor:
        """Token ids BS (first part) or activations BSH -> logits BSV (last part) or BSH."""
        if self.embedding is not None:
            x = self.embedding(x)
        rotary = self.rotary.table if self.rotary is not None else None
        for block in self.blocks.values():
            if self.recompute:
                x = cast(Tensor, checkpoint(block, x, rotary, use_reentrant=False))
            else:
                x = block(x, rotary)
        return self.head(x) if self.head is not None else x

    def units(self) -> Iterator[tuple[str, nn.Module]]:
        """The embedding, each block and the head, by the names that `Model.units` uses."""
        if self.embedding is not None:
            yield "embedding", self.embedding
        for index, block in self.blocks.items():
            yield f"blocks.{index}", block
        if self.head is not None:
            yield "head", self.head

    def named_weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Every weight by its name in the whole model: a tied head's is the embedding's."""
        for name, weight in self.named_parameters():
            yield self.whole_name(name), weight

    def whole_name(self, name: str) -> str:
        """What a weight of this part is called in the whole model."""
        return EMBEDDING if name == OUTPUT and self.model.tied else name

    def materialise(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        """Gives every unit its storage and its first values."""
        for name, unit in self.units():
            materialise(unit, name, device, dtype, seed, self.model)
        self.finish(device)

    def finish(self, device: torch.device) -> None:
        """What belongs to no unit: the rotary table, and the tie, which new storage has cut."""
        if self.rotary is not None:
            self.rotary.tabulate(device)
        self._tie()

    def _tie(self) -> None:
        if self.model.tied and self.embedding is not None and self.head is not None:
            self.head.output.weight = self.embedding.tokens.weight


def materialise(
    unit: nn.Module,
    prefix: str,
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
    model: Model,
    cut: Callable[[str, Tensor], Tensor] = lambda _name, whole: whole,
) -> None:
    """Moves a unit from the meta device to `device`, with its first values in `dtype`.

    A tensor-parallel rank gives `cut`: from a weight's name and whole value, the part it holds.

    Weights are normal with deviation 0.02, those that write into the residual stream divided by
    sqrt(2 x layers) (Radford et al., GPT-2, 2019, section 2.3); norms start at one, biases at zero.
    """
    for module in unit.modules():
        for name, meta in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(torch.empty_like(meta, dtype=dtype, device=device)))
    with torch.no_grad():
        for name, parameter in unit.named_parameters():
            full_name = f"{prefix}.{name}"
            if model.tied and full_name == OUTPUT:
                full_name = EMBEDDING
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                parameter.copy_(cut(full_name, _normal(full_name, seed, model)))


def _normal(name: str, seed: int, model: Model) -> Tensor:
    std = INITIAL_STD
    if name.endswith(("attention.out.weight", "mlp.down.weight")):
        std /= math.sqrt(2 * model.layers)
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    return torch.empty(model.shape(name)).normal_(0.0, std, generator=generator)


class Embedding(nn.Module):
    """Token ids BS -> BSH."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.tokens = nn.Embedding(model.vocab, model.hidden)
        learned = model.positions == "learned"
        self.positions = nn.Embedding(model.context, model.hidden) if learned else None

    def forward(self, ids_BS: Tensor) -> Tensor:
        x_BSH = cast(Tensor, self.tokens(ids_BS))
        if self.positions is not None:
            x_BSH = x_BSH + self.positions.weight[: ids_BS.shape[1]]
        return x_BSH


class Block(nn.Module):
    """One transformer block, BSH -> BSH."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.attention_norm = _norm(model, model.hidden)
        self.attention = Attention(model)
        self.mlp_norm = _norm(model, model.hidden)
        self.mlp = Mlp(model)

    def forward(self, x_BSH: Tensor, rotary: Tensor | None) -> Tensor:
        x_BSH = x_BSH + self.attention(self.attention_norm(x_BSH), rotary)
        return x_BSH + cast(Tensor, self.mlp(self.mlp_norm(x_BSH)))


class Attention(nn.Module):
    """Causal self-attention; K < A is grouped-query attention (arXiv:2305.13245)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        hidden, width = model.hidden, model.head_dim
        self.head_dim = width
        self.q = nn.Linear(hidden, model.heads * width, bias=model.qkv_bias)
        self.k = nn.Linear(hidden, model.kv_heads * width, bias=model.qkv_bias)
        self.v = nn.Linear(hidden, model.kv_heads * width, bias=model.qkv_bias)
        self.out = nn.Linear(model.heads * width, hidden, bias=model.out_bias)
        self.q_norm = _norm(model, width) if model.qk_norm else None
        self.k_norm = _norm(model, width) if model.qk_norm else None

    def forward(self, x_BSH: Tensor, rotary: Tensor | None) -> Tensor:
        # Head counts are read off the projections: a tensor-parallel rank holds a part of them.
        q_BSAD, k_BSKD, v_BSKD = (
            project(x_BSH).unflatten(-1, (-1, self.head_dim))
            for project in (self.q, self.k, self.v)
        )
        if self.q_norm is not None and self.k_norm is not None:
            q_BSAD, k_BSKD = self.q_norm(q_BSAD), self.k_norm(k_BSKD)
        if rotary is not None:
            q_BSAD, k_BSKD = rotate(q_BSAD, rotary), rotate(k_BSKD, rotary)
        mixed_BASD = F.scaled_dot_product_attention(
            q_BSAD.transpose(1, 2),
            k_BSKD.transpose(1, 2),
            v_BSKD.transpose(1, 2),
            is_causal=True,
            enable_gqa=q_BSAD.shape[2] != k_BSKD.shape[2],
        )
        return cast(Tensor, self.out(mixed_BASD.transpose(1, 2).flatten(2)))


class Mlp(nn.Module):
    """Gated (arXiv:2002.05202) or plain."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        hidden, ffn, bias = model.hidden, model.ffn, model.mlp_bias
        self.gate = nn.Linear(hidden, ffn, bias=bias) if model.mlp == "gated" else None
        self.up = nn.Linear(hidden, ffn, bias=bias)
        self.down = nn.Linear(ffn, hidden, bias=bias)
        self.activation = F.silu if model.activation == "silu" else F.gelu

    def forward(self, x_BSH: Tensor) -> Tensor:
        up = self.up(x_BSH)
        inner = self.activation(up) if self.gate is None else self.activation(self.gate(x_BSH)) * up
        return cast(Tensor, self.down(inner))


class Head(nn.Module):
    """The final norm and the projection to logits, BSH -> BSV."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = _norm(model, model.hidden)
        self.output = nn.Linear(model.hidden, model.vocab, bias=False)

    def forward(self, x_BSH: Tensor) -> Tensor:
        return cast(Tensor, self.output(self.norm(x_BSH)))


class Rotary(nn.Module):
    """The table of rotary positions (Su et al., arXiv:2104.09864): cosines, then sines, 2SD/2."""

    table: Tensor

    def __init__(self, model: Model, seq: int) -> None:
        super().__init__()
        self.pairs, self.theta, self.seq = model.head_dim // 2, model.rope_theta, seq
        self.register_buffer("table", torch.empty(2, seq, self.pairs), persistent=False)

    def tabulate(self, device: torch.device) -> None:
        """Fills the table."""
        frequencies = self.theta ** (-torch.arange(self.pairs, device=device) / self.pairs)
        angles = torch.outer(torch.arange(self.seq, device=device, dtype=torch.float), frequencies)
        self.table = torch.stack((angles.cos(), angles.sin()))


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turns each pair of numbers of every head, BS.D -> BS.D, by its position's angle."""
    cos, sin = table.to(x.dtype).unsqueeze(-2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _norm(model: Model, width: int) -> nn.Module:
    kind = nn.RMSNorm if model.norm == "rms" else nn.LayerNorm
    return kind(width, eps=model.norm_eps)
