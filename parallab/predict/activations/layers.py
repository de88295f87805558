"""The operations of a decoder as a tape sees them: what each keeps, makes and frees, in bytes.

Each function is one operation of `rank.decoder` or of the loss. What it keeps is what torch's
derivatives.yaml keeps, held against measured steps on the CPU. `norms` and `losses` are operations
too.
"""

from __future__ import annotations

from dataclasses import dataclass

from parallab.models.spec import Model
from parallab.predict.activations.tape import Tape, Value


@dataclass(frozen=True)
class Sizes:
    """What the bytes of a unit depend on.

    Attributes:
        element: bytes of one weight or activation, 2 or 4.
        batch, seq: sequences of one micro-batch, and their tokens.
        tp: ranks of the tensor axis.
        vocab: rows of the embedding that this rank holds.
        fused: whether RMSNorm is one kernel.
    """

    model: Model
    element: int
    batch: int
    seq: int
    tp: int
    vocab: int
    sequence_parallel: bool
    fused: bool

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch."""
        return self.batch * self.seq

    @property
    def hidden_bytes(self) -> int:
        """One activation of the model's width, all tokens."""
        return self.tokens * self.model.hidden * self.element

    @property
    def boundary_bytes(self) -> int:
        """The activation between two blocks: a part of the sequence with sequence parallelism."""
        return self.hidden_bytes // (self.tp if self.sequence_parallel else 1)

    @property
    def heads(self) -> int:
        """Heads of this rank."""
        return self.model.heads // self.tp

    @property
    def kv_heads(self) -> int:
        """Key and value heads of this rank."""
        return self.model.kv_heads // self.tp

    @property
    def ffn(self) -> int:
        """Inner width of this rank's MLP."""
        return self.model.ffn // self.tp

    @property
    def copies(self) -> bool:
        """Whether gathering and scattering along the sequence copies activations there and back.

        The collective joins the first dimension: with one sequence that is a view.
        """
        return self.sequence_parallel and self.batch > 1


def add(tape: Tape, x: Value, y: Value) -> Value:
    """A sum keeps nothing; both terms get the output's gradient, the same memory."""
    out = tape.make(x.bytes)

    def backward() -> None:
        assert out.gradient is not None
        out.gradient.readers += 1
        tape.arrive(x, out.gradient)
        tape.arrive(y, out.gradient)

    tape.undo(backward)
    return out


def linear(
    tape: Tape,
    x: Value,
    inputs: int,
    outputs: int,
    bias: bool = False,
    *,
    weights: int = 1,
    waiting: int = 0,
) -> Value:
    """A linear layer keeps x; backward makes the gradients of weight, bias and x.

    Args:
        weights: how many weights of this shape share the rows of x (experts).
        waiting: bytes of the weight's gradient where it waits for another one to be added: a head
            that shares the embedding's weight.
    """
    elements = 0 if waiting else weights * (inputs * outputs + (outputs if bias else 0))
    tape.keep(x)
    out = tape.make(x.bytes // inputs * outputs)

    def backward() -> None:
        tape.hold(waiting)
        tape.weight_gradient(elements)
        gradient = tape.new_gradient(x.bytes)
        tape.read_for_weights(out)
        tape.free(x)
        tape.arrive(x, gradient)
        tape.collect()

    tape.undo(backward)
    return out


def gated(tape: Tape, gate: Value, up: Value) -> Value:
    """silu(gate) * up: keeps gate, silu(gate) and up (arXiv:2002.05202)."""
    opened = activation(tape, gate)
    tape.forget(gate)
    out = tape.make(up.bytes)
    tape.keep(opened, up)
    tape.forget(opened)

    def backward() -> None:
        to_up, to_gate = tape.new_gradient(up.bytes), tape.new_gradient(up.bytes)
        tape.read(out)
        tape.free(opened, up)
        tape.arrive(up, to_up)
        tape.arrive(opened, to_gate)

    tape.undo(backward)
    return out


def activation(tape: Tape, x: Value) -> Value:
    """Either of silu and gelu keeps its input."""
    tape.keep(x)
    out = tape.make(x.bytes)

    def backward() -> None:
        gradient = tape.new_gradient(x.bytes)
        tape.read(out)
        tape.free(x)
        tape.arrive(x, gradient)

    tape.undo(backward)
    return out


def rotate(tape: Tape, sizes: Sizes, x: Value) -> Value:
    """Rotary positions (arXiv:2104.09864), half by half; keeps the table where it had to be cast.

    In bf16 the table, two numbers for each pair and token of a sequence, is cast for every use.
    """
    table = tape.make(sizes.seq * sizes.model.rotary_dim * 2 if sizes.element < 4 else 0)
    tape.keep(table)
    tape.hold(2 * x.bytes)  # one half is done, two products and their sum for the other
    tape.drop(x.bytes)
    out = tape.make(x.bytes)
    tape.drop(x.bytes)
    tape.forget(table)

    def backward() -> None:
        tape.hold(2 * x.bytes)
        tape.drop(2 * x.bytes)
        gradient = tape.new_gradient(x.bytes)
        tape.read(out)
        tape.hold(x.bytes)
        tape.drop(x.bytes)
        tape.free(table)
        tape.arrive(x, gradient)

    tape.undo(backward)
    return out


def attention(tape: Tape, sizes: Sizes, q: Value, k: Value, v: Value) -> Value:
    """Flash attention (arXiv:2205.14135): keeps q, k, v, its output, and 4 bytes a row.

    On CUDA its backward adds up the gradient of q in fp32, and has one of k and v for each query
    head before it adds up those that share (ATen/native/transformers/cuda/flash_attn/flash_api.cpp,
    `mha_bwd`).
    """
    model = sizes.model
    out = tape.make(sizes.tokens * sizes.heads * model.value_dim * sizes.element)
    sums = tape.make(4 * sizes.tokens * sizes.heads)
    tape.keep(q, k, v, out, sums)
    tape.forget(sums)

    sums_of_q = q.bytes // sizes.element * 4
    expanded = 2 * q.bytes if sizes.heads > sizes.kv_heads else 0
    inside = sums_of_q + sums.bytes + expanded if sizes.fused else 0

    def backward() -> None:
        gradients = [tape.new_gradient(x.bytes) for x in (q, k, v)]
        tape.hold(inside)
        tape.drop(inside)
        tape.read(out)
        tape.free(q, k, v, out, sums)
        for x, gradient in zip((q, k, v), gradients, strict=True):
            tape.arrive(x, gradient)

    tape.undo(backward)
    return out


def lookup(tape: Tape, sizes: Sizes, shared: bool) -> Value:
    """The rows of the embedding; backward makes a gradient as large as the weight.

    Args:
        shared: the head has the same weight: its gradient has waited, and both are added up.
    """
    out = tape.make(sizes.hidden_bytes)
    elements = sizes.vocab * sizes.model.hidden
    waiting = elements * sizes.element if shared else 0

    def backward() -> None:
        tape.hold(waiting)
        tape.weight_gradient(elements)
        tape.read_for_weights(out)
        tape.drop(2 * waiting)
        tape.collect()

    tape.undo(backward)
    return out


def add_positions(tape: Tape, sizes: Sizes, x: Value) -> Value:
    """Learned positions: the gradient of the used rows, then of the whole table."""
    out = tape.make(x.bytes)
    used = sizes.seq * sizes.model.hidden * sizes.element

    def backward() -> None:
        assert out.gradient is not None
        summed = used if sizes.batch > 1 or sizes.sequence_parallel else 0
        tape.hold(summed)
        tape.weight_gradient(sizes.model.context * sizes.model.hidden)
        tape.drop(summed)
        tape.arrive(x, out.gradient)
        tape.collect()

    tape.undo(backward)
    return out
