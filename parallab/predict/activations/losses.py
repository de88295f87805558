"""The loss on a tape: cross-entropy in fp32, of whole logits or of a part of the vocabulary."""

from __future__ import annotations

from parallab.predict.activations.layers import Sizes
from parallab.predict.activations.tape import Gradient, Tape, Value


def whole(tape: Tape, sizes: Sizes, logits: Value) -> Value:
    """Cross-entropy in fp32: keeps the logarithms of the probabilities."""
    wide = 4 * sizes.tokens * sizes.vocab
    cast = sizes.element < 4
    copy = wide if cast else 0
    tape.hold(copy)
    logarithms = tape.make(wide)
    tape.keep(logarithms)
    tape.forget(logarithms)
    tape.drop(copy)
    out = tape.make(0)

    def backward() -> None:
        tape.hold(wide)  # of the logarithms: zero but for the targets
        gradient = tape.new_gradient(wide)
        tape.drop(wide)
        tape.free_after(logarithms)
        _arrive_narrow(tape, sizes, logits, gradient)

    tape.undo(backward)
    return out


def split(tape: Tape, sizes: Sizes, logits: Value) -> Value:
    """Cross-entropy of logits split over the vocabulary: keeps this rank's probabilities.

    Of each token also the target's place here (8 bytes), and whether it is elsewhere (1 byte).
    """
    wide = 4 * sizes.tokens * sizes.vocab
    copy = wide if sizes.element < 4 else 0
    tape.hold(copy)
    probabilities, places = tape.make(wide), tape.make(9 * sizes.tokens)
    tape.hold(6 * 4 * sizes.tokens)
    tape.drop(6 * 4 * sizes.tokens)
    tape.keep(probabilities, places)
    tape.forget(probabilities, places)
    tape.drop(copy)
    out = tape.make(0)

    def backward() -> None:
        tape.hold(4 * sizes.tokens)
        gradient = tape.new_gradient(wide)
        _arrive_narrow(tape, sizes, logits, gradient)
        tape.drop(4 * sizes.tokens)
        tape.free_after(probabilities)
        tape.free_after(places)

    tape.undo(backward)
    return out


def _arrive_narrow(tape: Tape, sizes: Sizes, logits: Value, gradient: Gradient) -> None:
    """The fp32 gradient of logits, cast to their own precision."""
    if sizes.element < 4:
        narrow = tape.new_gradient(logits.bytes)
        tape.release(gradient)
        gradient = narrow
    tape.arrive(logits, gradient)
