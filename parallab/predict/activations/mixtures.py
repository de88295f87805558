"""Parts of models that are counted and not trained, on a tape: experts and latent attention.

No step of parallab's runs them, so nothing holds these to a measurement: they are estimates, built
from the operations that are.
"""

from __future__ import annotations

from parallab.predict.activations import layers, norms
from parallab.predict.activations.layers import Sizes
from parallab.predict.activations.tape import Tape, Value


def experts(tape: Tape, sizes: Sizes, x: Value) -> Value:
    """A mixture of experts: each token goes through `experts_per_token` MLPs, and the shared one.

    Tokens are copied into the order of their experts; the outputs are kept for the gradient of
    their weights (Shazeer et al., arXiv:1701.06538).
    """
    model, chosen = sizes.model, sizes.model.experts_per_token
    scores = layers.linear(tape, x, model.hidden, model.experts)
    sorted_ = tape.make(x.bytes * chosen)
    tape.undo(lambda: _gather_gradient(tape, x, sorted_))
    y = _gated(tape, sizes, sorted_, model.expert_ffn, model.experts)
    tape.forget(sorted_, scores)
    out = tape.make(x.bytes)
    tape.keep(y)
    tape.undo(lambda: _spread_gradient(tape, scores, y, out))
    tape.forget(y)
    if not model.shared_ffn:
        return out
    shared = _gated(tape, sizes, x, model.shared_ffn, 1)
    both = layers.add(tape, out, shared)
    tape.forget(out, shared)
    return both


def _gated(tape: Tape, sizes: Sizes, x: Value, width: int, weights: int) -> Value:
    hidden, bias = sizes.model.hidden, sizes.model.mlp_bias
    up = layers.linear(tape, x, hidden, width, bias, weights=weights)
    if sizes.model.mlp == "gated":
        gate = layers.linear(tape, x, hidden, width, bias, weights=weights)
        inner = layers.gated(tape, gate, up)
    else:
        inner = layers.activation(tape, up)
    out = layers.linear(tape, inner, width, hidden, bias, weights=weights)
    tape.forget(up, inner)
    return out


def _gather_gradient(tape: Tape, x: Value, sorted_: Value) -> None:
    gradient = tape.new_gradient(x.bytes)
    tape.read(sorted_)
    tape.arrive(x, gradient)


def _spread_gradient(tape: Tape, scores: Value, y: Value, out: Value) -> None:
    to_y, to_scores = tape.new_gradient(y.bytes), tape.new_gradient(scores.bytes)
    tape.read(out)
    tape.free(y)
    tape.arrive(y, to_y)
    tape.arrive(scores, to_scores)


def latent_attention(tape: Tape, sizes: Sizes, x: Value) -> Value:
    """MLA (arXiv:2405.04434, section 2.1.2): keys and values from a narrow activation."""
    model, bias = sizes.model, sizes.model.qkv_bias
    hidden, width = model.hidden, model.heads * model.head_dim
    if model.q_rank:
        narrow = layers.linear(tape, x, hidden, model.q_rank, bias)
        normed = norms.norm(tape, sizes, narrow, model.q_rank)
        q = layers.linear(tape, normed, model.q_rank, width)
        tape.forget(narrow, normed)
    else:
        q = layers.linear(tape, x, hidden, width)
    rotary, plain = model.rotary_dim, model.head_dim - model.rotary_dim
    shared = layers.linear(tape, x, hidden, model.kv_rank, bias)
    position = layers.linear(tape, x, hidden, rotary, bias)
    normed = norms.norm(tape, sizes, shared, model.kv_rank)
    k = layers.linear(tape, normed, model.kv_rank, model.heads * plain)
    v = layers.linear(tape, normed, model.kv_rank, model.heads * model.value_dim)
    whole = _with_position(tape, k, position, q.bytes)
    tape.forget(shared, normed, k, position)
    mixed = layers.attention(tape, sizes, q, whole, v)
    out = layers.linear(tape, mixed, model.heads * model.value_dim, hidden, model.out_bias)
    tape.forget(q, whole, v, mixed)
    return out


def _with_position(tape: Tape, k: Value, position: Value, size: int) -> Value:
    """Every head's key with the rotary part, which is the same for all."""
    out = tape.make(size)

    def backward() -> None:
        to_k, to_position = tape.new_gradient(k.bytes), tape.new_gradient(position.bytes)
        tape.read(out)
        tape.arrive(k, to_k)
        tape.arrive(position, to_position)

    tape.undo(backward)
    return out
