"""The units of a model on a tape: embedding, block and head, as `rank.decoder` runs them.

What a unit takes does not depend on its place, so a block is played once, whatever the number of
layers. What the tensor axis adds (`parallel.tensor`) is in `borders`; parts that are counted and
not trained, experts and latent attention, are in `mixtures`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.predict.activations import borders, layers, losses, mixtures, norms
from parallab.predict.activations.layers import Sizes
from parallab.predict.activations.tape import Gradient, Moment, Tape, Value, highest
from parallab.predict.parts import EMBEDDING, sliced


@dataclass(frozen=True)
class Passes:
    """What a unit takes in its two passes.

    Attributes:
        kept_bytes: its activations between forward and backward; its input is among them where an
            operation keeps it, its output is the next unit's.
        input_bytes, output_bytes: what it reads and makes, 0 where that is counted elsewhere.
        input_kept: whether the input is among the activations.
        forward, backward: the highest moments of the passes.
        left: what a halved backward pass leaves for the weights' gradients.
    """

    kept_bytes: int
    input_bytes: int
    output_bytes: int
    input_kept: bool
    forward: tuple[Moment, ...]
    backward: tuple[Moment, ...]
    left: Left


class Left(NamedTuple):
    """What a halved backward pass leaves.

    Attributes:
        activations, temporary: bytes of activations, and of gradients of activations.
        communication: of the latter, those that the tensor axis has summed.
        late: of the activations, what goes when the pass is over.
    """

    activations: int = 0
    temporary: int = 0
    communication: int = 0
    late: int = 0


def sizes_of(model: Model, plan: Plan, tp: int, kernels: str) -> Sizes:
    """The sizes on one tensor-parallel rank."""
    return Sizes(
        model=model,
        element=plan.element_bytes,
        batch=plan.micro_batch,
        seq=plan.seq,
        tp=plan.tp,
        vocab=sliced(EMBEDDING, (model.vocab, model.hidden), plan.tp, tp)[0],
        sequence_parallel=plan.sequence_parallel,
        fused=kernels == "cuda",
    )


@dataclass(frozen=True)
class Place:
    """Where a block stands: what it reads may be a receive buffer, and the gradient too.

    Attributes:
        first, last: whether it is at such an end of its stage.
        sparse: whether its MLP is a mixture of experts.
        keeping: whether it keeps activations, or will be computed again.
        halved: whether backward makes the gradients of activations alone.
    """

    first: bool = False
    last: bool = False
    sparse: bool = False
    keeping: bool = True
    halved: bool = False


@functools.lru_cache(maxsize=1024)
def block(sizes: Sizes, place: Place) -> Passes:
    """One block: x + attention(norm(x)), then x + mlp(norm(x))."""
    tape = Tape(place.keeping, place.halved)
    x = tape.given(sizes.boundary_bytes, outside=place.first)
    mlp = mixtures.experts if place.sparse else _mlp
    mixer = mixtures.latent_attention if sizes.model.kv_rank else _attention
    if sizes.model.parallel:
        out = _parallel(tape, sizes, x, mixer, mlp)
    else:
        middle = _residual(tape, sizes, x, mixer)
        out = _residual(tape, sizes, middle, mlp)
        tape.forget(middle)
    return _played(tape, x, out, outside=place.last)


Layer = Callable[[Tape, Sizes, Value], Value]


def _residual(tape: Tape, sizes: Sizes, x: Value, layer: Layer) -> Value:
    normed = borders.norm(tape, sizes, x)
    y = layer(tape, sizes, normed)
    tape.forget(normed)
    if sizes.model.block_norms == 4:
        after = borders.norm(tape, sizes, y)
        tape.forget(y)
        y = after
    out = layers.add(tape, x, y)
    tape.forget(y)
    return out


def _parallel(tape: Tape, sizes: Sizes, x: Value, mixer: Layer, mlp: Layer) -> Value:
    """Attention and MLP of the same x, all three added: one norm for both, or one each."""
    normed = borders.norm(tape, sizes, x)
    other = borders.norm(tape, sizes, x) if sizes.model.block_norms > 1 else normed
    mixed = mixer(tape, sizes, normed)
    inner = mlp(tape, sizes, other)
    tape.forget(normed, other)
    both = layers.add(tape, mixed, inner)
    tape.forget(mixed, inner)
    out = layers.add(tape, x, both)
    tape.forget(both)
    return out


def _attention(tape: Tape, sizes: Sizes, normed: Value) -> Value:
    """Projections, norms of queries and keys, rotary positions, attention, output."""
    model, hidden = sizes.model, sizes.model.hidden
    query, key = sizes.heads * model.head_dim, sizes.kv_heads * model.head_dim
    value = sizes.kv_heads * model.value_dim
    x = borders.enter(tape, sizes, normed)
    q, k, v = (
        layers.linear(tape, x, hidden, width, model.qkv_bias) for width in (query, key, value)
    )
    if model.qk_norm:
        q, k = _both(tape, q, k, lambda z: norms.norm(tape, sizes, z, model.head_dim))
    if model.positions == "rope":
        q, k = _both(tape, q, k, lambda z: layers.rotate(tape, sizes, z))
    mixed = layers.attention(tape, sizes, q, k, v)
    tape.forget(q, k, v)
    out = borders.rows(tape, sizes, mixed, sizes.heads * model.value_dim, model.out_bias)
    borders.leave_scope(tape, x, normed, mixed)
    return out


def _both(tape: Tape, q: Value, k: Value, change: Callable[[Value], Value]) -> tuple[Value, Value]:
    changed = change(q), change(k)
    tape.forget(q, k)
    return changed


def _mlp(tape: Tape, sizes: Sizes, normed: Value) -> Value:
    """Gated (arXiv:2002.05202) or plain."""
    model = sizes.model
    x = borders.enter(tape, sizes, normed)
    columns = functools.partial(layers.linear, tape, x, model.hidden, sizes.ffn, model.mlp_bias)
    up = columns()
    if model.mlp == "gated":
        gate = columns()
        inner = layers.gated(tape, gate, up)
    else:
        inner = layers.activation(tape, up)
    tape.forget(up)
    out = borders.rows(tape, sizes, inner, sizes.ffn, model.mlp_bias)
    borders.leave_scope(tape, x, normed, inner)
    return out


@functools.lru_cache(maxsize=256)
def embedding(sizes: Sizes, shared: bool) -> Passes:
    """Token ids -> activations; the weight's gradient is as large as the weight.

    Args:
        shared: the head has the same weight, and its gradient waits for the embedding's.
    """
    tape = Tape()
    ids = tape.given(0, outside=True)
    out = borders.lookup(tape, sizes, shared)
    if sizes.model.positions == "learned":
        placed = layers.add_positions(tape, sizes, out)
        tape.forget(out)
        out = placed
    return _played(tape, ids, out)


@functools.lru_cache(maxsize=256)
def head(sizes: Sizes, shared: bool, outside: bool = False, halved: bool = False) -> Passes:
    """Final norm and logits.

    Args:
        shared: the embedding has the same weight.
        outside: the logits and their gradient are counted elsewhere.
        halved: whether backward makes the gradients of activations alone.
    """
    model = sizes.model
    tape = Tape(halved=halved)
    x = tape.given(sizes.boundary_bytes, outside=False)
    normed = borders.norm(tape, sizes, x)
    read = borders.enter(tape, sizes, normed)
    logits = layers.linear(
        tape, read, model.hidden, sizes.vocab, model.head_bias,
        waiting=sizes.vocab * model.hidden * sizes.element if shared else 0,
    )  # fmt: skip
    borders.leave_scope(tape, read, normed)
    tape.forget(normed)
    return _played(tape, x, logits, outside)


@functools.lru_cache(maxsize=256)
def loss(sizes: Sizes, outside: bool, halved: bool = False) -> Passes:
    """The loss in fp32.

    Args:
        outside: the logits are counted elsewhere.
        halved: whether weights' gradients are left for later, and with them the loss's graph.
    """
    tape = Tape(halved=halved)
    logits = tape.given(sizes.tokens * sizes.vocab * sizes.element, outside)
    return _played(
        tape, logits, (losses.split if sizes.tp > 1 else losses.whole)(tape, sizes, logits)
    )


def _played(tape: Tape, x: Value, out: Value, outside: bool = False) -> Passes:
    """Ends the forward pass, and plays the backward pass from the output's gradient.

    Args:
        outside: the output's gradient is counted elsewhere.
    """
    input_kept = x.keepers > 0
    tape.forget(x, out)
    assert tape.temporary == 0, f"{tape.temporary} bytes are still held by name"
    kept = tape.activations
    if tape.keeping:
        out.gradient = Gradient(0 if outside else out.bytes)
        tape.temporary = out.gradient.bytes
        tape.play_back()
        assert tape.halved or not tape.activations, f"{tape.activations} bytes are still kept"
    sent = x.gradient.bytes if x.gradient is not None and not x.gradient.communication else 0
    return Passes(
        kept, x.counted, 0 if outside else out.bytes, input_kept,
        highest(tape.forward), highest(tape.backward),
        Left(tape.activations, tape.temporary - sent, tape.communication, tape.late),
    )  # fmt: skip
