"""The borders of split layers on a tape: what the tensor axis adds to a unit (`parallel.tensor`).

Without sequence parallelism (Megatron-LM, arXiv:1909.08053, section 3) forward adds nothing, and
backward copies a gradient before it sums it over the ranks. With it (arXiv:2205.05198, section
4.2.2) a layer's input is gathered, its output scattered, and the same backwards.
"""

from __future__ import annotations

from parallab.predict.activations import layers, norms
from parallab.predict.activations.layers import Sizes
from parallab.predict.activations.tape import Gradient, Tape, Value


def norm(tape: Tape, sizes: Sizes, x: Value) -> Value:
    """A norm of the block, over its part of the sequence where there is one."""
    return norms.norm(tape, sizes, x, sizes.model.hidden)


def enter(tape: Tape, sizes: Sizes, x: Value) -> Value:
    """Into a split layer: x on every rank, or gathered along the sequence."""
    if sizes.tp == 1:
        return x
    if not sizes.sequence_parallel:
        tape.undo(lambda: _sum_gradient(tape, x))
        return x
    whole = _moved(tape, sizes, x.bytes, sizes.hidden_bytes)

    def backward() -> None:
        moved = _moved(tape, sizes, whole.bytes, x.bytes)
        tape.read(whole)
        tape.arrive(x, Gradient(moved.bytes))

    tape.undo(backward)
    return whole


def _moved(tape: Tape, sizes: Sizes, given: int, made: int) -> Value:
    """A collective along the sequence: copied there, joined or split, and copied back.

    Args:
        given, made: bytes of what goes in and of what comes out.
    """
    if not sizes.copies:
        return tape.make(made)
    tape.hold(given)
    tape.hold(made)
    value = tape.make(made)
    tape.drop(given + made)
    return value


def _sum_gradient(tape: Tape, x: Value) -> None:
    """A copy of the gradient, all-reduced in place."""
    assert x.gradient is not None
    tape.buffer(x.gradient.bytes)
    summed = Gradient(x.gradient.bytes, communication=True)
    tape.release(x.gradient)
    x.gradient = summed


def leave_scope(tape: Tape, read: Value, normed: Value, *others: Value) -> None:
    """A split layer returns: the names of what it read go, the norm's output has its caller's."""
    tape.forget(*others)
    if read is not normed:
        tape.forget(read)


def rows(tape: Tape, sizes: Sizes, x: Value, inputs: int, bias: bool) -> Value:
    """The output projection: a linear layer split by rows, whose bias comes after the sum."""
    if sizes.tp == 1:
        return layers.linear(tape, x, inputs, sizes.model.hidden, bias)
    y = layers.linear(tape, x, inputs, sizes.model.hidden)
    if sizes.sequence_parallel:
        y = scatter(tape, sizes, y)
    return _add_bias(tape, sizes, y) if bias else y


def scatter(tape: Tape, sizes: Sizes, partial: Value) -> Value:
    """Partial sums -> this rank's part of their sum; backward gathers the gradient."""
    out = _moved(tape, sizes, partial.bytes, sizes.boundary_bytes)
    tape.forget(partial)

    def backward() -> None:
        moved = _moved(tape, sizes, out.bytes, partial.bytes)
        tape.read(out)
        tape.arrive(partial, Gradient(moved.bytes))

    tape.undo(backward)
    return out


def _add_bias(tape: Tape, sizes: Sizes, y: Value) -> Value:
    out = tape.make(y.bytes)
    tape.forget(y)

    def backward() -> None:
        assert out.gradient is not None
        tape.weight_gradient(sizes.model.hidden)
        tape.collect()
        tape.arrive(y, out.gradient)

    tape.undo(backward)
    return out


def lookup(tape: Tape, sizes: Sizes, shared: bool) -> Value:
    """The embedding's rows; of a split one this rank's, zero for ids of other ranks, and summed.

    A split one keeps each token's place here (8 bytes), and whether it is elsewhere (1 byte).
    """
    if sizes.tp == 1:
        return layers.lookup(tape, sizes, shared)
    tape.hold(11 * sizes.tokens)
    places = tape.make(9 * sizes.tokens)
    tape.keep(places)
    found = layers.lookup(tape, sizes, shared)
    out = tape.make(found.bytes)
    tape.drop(11 * sizes.tokens)
    tape.forget(places, found)

    def backward() -> None:
        gradient = tape.new_gradient(found.bytes)
        tape.read(out)
        tape.free(places)
        tape.arrive(found, gradient)

    tape.undo(backward)
    return scatter(tape, sizes, out) if sizes.sequence_parallel else out
