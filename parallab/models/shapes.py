"""Every parameter of a model by name and shape: the one source of all counts and bytes.

One block, with what its family has of it, in the module's order:

    attention_norm
    attention.q .k .v .out .q_norm .k_norm   or latent attention (MLA): .q_a .q_a_norm .q_b, or
                                             .q, then .kv_a .kv_a_norm .kv_b .out
    attention_post_norm, mlp_norm
    mlp.gate .up .down                       or mlp.router, mlp.experts.*, mlp.shared.*
    mlp_post_norm

Experts are one tensor a projection, stacked along its first dimension, as grouped matrix
multiplications take them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parallab.models.spec import Model

Shape = tuple[int, ...]
Shapes = dict[str, Shape]


def count(shapes: Mapping[str, Shape]) -> int:
    """Number of elements of all shapes together."""
    return sum(math.prod(shape) for shape in shapes.values())


def embedding(model: Model) -> Shapes:
    """Parameters of the embedding."""
    shapes: Shapes = {"embedding.tokens.weight": (model.vocab, model.hidden)}
    if model.positions == "learned":
        shapes["embedding.positions.weight"] = (model.context, model.hidden)
    return shapes


def block(model: Model, layer: int) -> Shapes:
    """Parameters of one block, by their names within it."""
    after = model.block_norms == 4
    return {
        **_norm(model, "attention_norm", model.hidden),
        **(_latent_attention(model) if model.kv_rank else _attention(model)),
        **(_norm(model, "attention_post_norm", model.hidden) if after else {}),
        **(_norm(model, "mlp_norm", model.hidden) if model.block_norms > 1 else {}),
        **(_experts(model) if model.is_sparse(layer) else _mlp(model, "mlp", model.ffn)),
        **(_norm(model, "mlp_post_norm", model.hidden) if after else {}),
    }


def head(model: Model) -> Shapes:
    """Parameters of the final norm and the output projection."""
    shapes = _norm(model, "head.norm", model.hidden)
    if not model.tied:
        shapes["head.output.weight"] = (model.vocab, model.hidden)
    if model.head_bias:
        shapes["head.output.bias"] = (model.vocab,)
    return shapes


def idle(model: Model, layer: int) -> int:
    """Parameters of a block that one token leaves out: the experts that it is not sent to."""
    experts = {n: s for n, s in block(model, layer).items() if n.startswith("mlp.experts.")}
    return sum(math.prod(s[1:]) for s in experts.values()) * (
        model.experts - model.experts_per_token
    )


def _linear(name: str, out_features: int, in_features: int, bias: bool = False) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (out_features, in_features)}
    if bias:
        shapes[f"{name}.bias"] = (out_features,)
    return shapes


def _norm(model: Model, name: str, width: int) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (width,)}
    if model.norm == "layer":
        shapes[f"{name}.bias"] = (width,)
    return shapes


def _attention(model: Model) -> Shapes:
    h, d, bias = model.hidden, model.head_dim, model.qkv_bias
    shapes = {
        **_linear("attention.q", model.heads * d, h, bias),
        **_linear("attention.k", model.kv_heads * d, h, bias),
        **_linear("attention.v", model.kv_heads * model.value_dim, h, bias),
        **_linear("attention.out", h, model.heads * model.value_dim, model.out_bias),
    }
    if model.qk_norm:
        shapes |= _norm(model, "attention.q_norm", d) | _norm(model, "attention.k_norm", d)
    return shapes


def _latent_attention(model: Model) -> Shapes:
    """MLA: keys and values, and queries where q_rank is set, pass through a narrow layer.

    DeepSeek-V2, arXiv:2405.04434, section 2.1. The rotary part of the key comes straight from the
    input and is shared by all heads. A bias, where there is one, is on what reads the input.
    """
    h, width, bias = model.hidden, model.heads * model.head_dim, model.qkv_bias
    plain = model.head_dim - model.rotary_dim
    if model.q_rank:
        queries = {
            **_linear("attention.q_a", model.q_rank, h, bias),
            **_norm(model, "attention.q_a_norm", model.q_rank),
            **_linear("attention.q_b", width, model.q_rank),
        }
    else:
        queries = _linear("attention.q", width, h)
    return {
        **queries,
        **_linear("attention.kv_a", model.kv_rank + model.rotary_dim, h, bias),
        **_norm(model, "attention.kv_a_norm", model.kv_rank),
        **_linear("attention.kv_b", model.heads * (plain + model.value_dim), model.kv_rank),
        **_linear("attention.out", h, model.heads * model.value_dim, model.out_bias),
    }


def _mlp(model: Model, name: str, width: int) -> Shapes:
    h, bias = model.hidden, model.mlp_bias
    return {
        **(_linear(f"{name}.gate", width, h, bias) if model.mlp == "gated" else {}),
        **_linear(f"{name}.up", width, h, bias),
        **_linear(f"{name}.down", h, width, bias),
    }


def _experts(model: Model) -> Shapes:
    n, h, f = model.experts, model.hidden, model.expert_ffn
    shapes: Shapes = {"mlp.router.weight": (n, h)}
    if model.mlp == "gated":
        shapes["mlp.experts.gate.weight"] = (n, f, h)
    shapes["mlp.experts.up.weight"] = (n, f, h)
    shapes["mlp.experts.down.weight"] = (n, h, f)
    if model.shared_ffn:
        shapes |= _mlp(model, "mlp.shared", model.shared_ffn)
    return shapes
