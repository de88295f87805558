"""Norms on a tape.

On the CPU, RMSNorm is seven operations in fp32, and what lies between them is kept. On CUDA one
fused kernel takes their place (ATen/native/layer_norm.cpp): that is read from torch's sources, not
measured.
"""

from __future__ import annotations

from parallab.predict.activations.layers import Sizes
from parallab.predict.activations.tape import Tape, Value


def norm(tape: Tape, sizes: Sizes, x: Value, width: int) -> Value:
    """The model's norm over the last `width` numbers."""
    kind = layer_norm if sizes.model.norm == "layer" else rms_norm
    return kind(tape, sizes, x, width)


def layer_norm(tape: Tape, sizes: Sizes, x: Value, width: int) -> Value:
    """One kernel everywhere: keeps x, and each row's mean and 1/deviation (on CUDA in fp32)."""
    rows = x.bytes // (width * sizes.element)
    tape.keep(x)
    statistics = tape.make(2 * (4 if sizes.fused else sizes.element) * rows)
    tape.keep(statistics)
    out = tape.make(x.bytes)
    tape.forget(statistics)

    def backward() -> None:
        gradient = tape.new_gradient(x.bytes)
        tape.weight_gradient(2 * width)
        tape.read_for_weights(out)
        tape.free(x, statistics)
        tape.arrive(x, gradient)
        tape.collect()

    tape.undo(backward)
    return out


def rms_norm(tape: Tape, sizes: Sizes, x: Value, width: int) -> Value:
    """RMSNorm: x · rstd · weight in fp32, rstd = 1/sqrt(mean(x²) + eps) (arXiv:1910.07467)."""
    if sizes.fused:
        return _fused_rms_norm(tape, sizes, x, width)
    rows = x.bytes // (width * sizes.element)
    wide = 4 * rows * width
    cast = sizes.element < 4
    read = _to_fp32(tape, x, wide) if cast else x
    tape.hold(wide + 2 * 4 * rows)  # x², its mean, rstd
    tape.drop(wide + 2 * 4 * rows)
    rstd, normed = tape.make(4 * rows), tape.make(wide)
    tape.keep(read, rstd, normed)
    out = tape.make(wide)
    tape.forget(rstd, normed, *([read] if cast else []))

    def backward() -> None:
        _backward_of_scale(tape, out, normed, width)
        _backward_of_rstd(tape, normed, read, rstd)

    tape.undo(backward)
    return _from_fp32(tape, out, x.bytes) if cast else out


def _backward_of_scale(tape: Tape, out: Value, normed: Value, width: int) -> None:
    """Of out = normed · weight: two gradients, the weight's from a product as large as x."""
    gradient = tape.new_gradient(normed.bytes)
    product = 0 if tape.halved else normed.bytes
    tape.hold(product)
    tape.weight_gradient(width)
    tape.drop(product)
    tape.read_for_weights(out)
    tape.free(normed)
    tape.arrive(normed, gradient)
    tape.collect()


def _backward_of_rstd(tape: Tape, normed: Value, x: Value, rstd: Value) -> None:
    """Of normed = x · rstd, rstd = (mean(x²) + eps)^(-1/2): two gradients of x, one by one.

    The second is divided by the width, multiplied by 2x: up to four tensors as large as x.
    """
    direct = tape.new_gradient(x.bytes)
    tape.hold(x.bytes)
    tape.hold(rstd.bytes)
    tape.drop(x.bytes)
    tape.read(normed)
    tape.arrive(x, direct)
    tape.hold(3 * rstd.bytes)
    tape.drop(3 * rstd.bytes)
    tape.free(rstd)
    tape.hold(x.bytes)
    tape.drop(rstd.bytes)
    through = tape.new_gradient(3 * x.bytes)
    tape.drop(3 * x.bytes)
    through.bytes = x.bytes
    tape.free(x)
    tape.arrive(x, through)


def _fused_rms_norm(tape: Tape, sizes: Sizes, x: Value, width: int) -> Value:
    """_fused_rms_norm: keeps x and 4 bytes a row; backward makes the two gradients at once."""
    tape.keep(x)
    rstd = tape.make(4 * (x.bytes // (width * sizes.element)))
    tape.keep(rstd)
    out = tape.make(x.bytes)
    tape.forget(rstd)

    def backward() -> None:
        gradient = tape.new_gradient(x.bytes)
        tape.weight_gradient(width)
        tape.read_for_weights(out)
        tape.free(x, rstd)
        tape.arrive(x, gradient)
        tape.collect()

    tape.undo(backward)
    return out


def _to_fp32(tape: Tape, x: Value, wide: int) -> Value:
    """A copy in fp32; keeps nothing."""
    out = tape.make(wide)
    _cast_back(tape, x, out)
    return out


def _from_fp32(tape: Tape, x: Value, narrow: int) -> Value:
    """A copy in the weights' precision; the fp32 value goes."""
    out = tape.make(narrow)
    tape.forget(x)
    _cast_back(tape, x, out)
    return out


def _cast_back(tape: Tape, x: Value, out: Value) -> None:
    def backward() -> None:
        gradient = tape.new_gradient(x.bytes)
        tape.read(out)
        tape.arrive(x, gradient)

    tape.undo(backward)
