"""What is alive while one unit of the model runs forward and backward, in bytes.

A `Tape` follows sizes the way autograd follows tensors (Paszke et al., "Automatic differentiation
in PyTorch", 2017): an operation keeps what its backward needs, backward runs the operations in
reverse, and each frees what it kept. No numbers are computed. `layers` are the operations, `units`
puts them together as `rank.decoder` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Moment(NamedTuple):
    """What a unit holds at one moment of its forward or backward pass, weights not counted.

    Attributes:
        activations: bytes that forward keeps for backward.
        temporary: bytes of gradients of activations, and of what is being computed.
        communication: bytes of the tensor axis' buffers.
        gradients: elements of weights' gradients that the data axis has been given so far.
        fresh: elements of those that have just been computed and are still tensors of their own.
        first: whether this is the moment at which the data axis gets the unit's first gradient.
        begun: whether any operation has run.
    """

    activations: int
    temporary: int
    communication: int
    gradients: int
    fresh: int
    first: bool
    begun: bool

    @property
    def total(self) -> int:
        """Bytes that do not depend on what the data axis does with gradients."""
        return self.activations + self.temporary + self.communication


def highest(moments: list[Moment]) -> tuple[Moment, ...]:
    """Of the moments at which the data axis holds the same, the highest one each."""
    best: dict[tuple[int, ...], Moment] = {}
    for moment in moments:
        key = moment[3:]
        if key not in best or moment.total > best[key].total:
            best[key] = moment
    return tuple(best.values())


class Gradient:
    """The gradient of an activation.

    Attributes:
        bytes: its size; 0 where its memory is counted elsewhere.
        communication: whether it is a collective's buffer.
        readers: operations that still want to read it.
    """

    __slots__ = ("bytes", "communication", "readers")

    def __init__(self, size: int, communication: bool = False) -> None:
        self.bytes, self.communication, self.readers = size, communication, 1


class Value:
    """An activation.

    Attributes:
        bytes: its size.
        counted: its size, or 0 where its memory is counted elsewhere.
        named: whether a name in the code still holds it.
        keepers: operations that keep it for their backward.
        gradient: what has arrived so far in backward.
    """

    __slots__ = ("bytes", "counted", "gradient", "keepers", "named")

    def __init__(self, size: int, outside: bool = False) -> None:
        self.bytes, self.counted = size, 0 if outside else size
        self.named, self.keepers = True, 0
        self.gradient: Gradient | None = None


class Tape:
    """Records one unit's operations, then plays them back.

    Args:
        keeping: whether operations keep what backward needs; not where a block will be computed
            again (Chen et al., arXiv:1604.06174).
        halved: whether backward makes only the gradients of activations, and leaves those of
            weights, with all that is needed for them, for later (zero bubble, arXiv:2401.10241).

    Attributes:
        forward, backward: the moments of the two passes, in order.
        late: bytes of kept activations that go when a halved backward pass is over.
    """

    def __init__(self, keeping: bool = True, halved: bool = False) -> None:
        self.keeping, self.halved = keeping, halved
        self.activations = self.temporary = self.communication = 0
        self.gradients = self.fresh = 0
        self.late = 0
        self.forward: list[Moment] = []
        self.backward: list[Moment] = []
        self._moments = self.forward
        self._steps: list[Callable[[], None]] = []

    # Forward.

    def make(self, size: int) -> Value:
        """The result of an operation."""
        self.hold(size)
        return Value(size)

    def given(self, size: int, outside: bool) -> Value:
        """The unit's input, which was there before."""
        value = Value(size, outside)
        self.temporary += value.counted
        return value

    def keep(self, *values: Value) -> None:
        """An operation keeps values for its backward."""
        for value in values if self.keeping else ():
            if not value.keepers:
                self.activations += value.counted
                self.temporary -= value.counted
            value.keepers += 1

    def forget(self, *values: Value) -> None:
        """The code's names for values go out of scope; what is kept stays."""
        for value in values:
            if value.named and not value.keepers:
                self.temporary -= value.counted
            value.named = False

    def undo(self, step: Callable[[], None]) -> None:
        """What backward has to do for the operation that was just recorded."""
        self._steps.append(step)

    # Either pass.

    def hold(self, size: int) -> None:
        """Takes temporary memory."""
        self.temporary += size
        self.mark()

    def drop(self, size: int) -> None:
        """Gives temporary memory back."""
        self.temporary -= size

    def buffer(self, size: int) -> None:
        """Takes (or with a negative size gives back) a buffer of a collective."""
        self.communication += size
        self.mark()

    def mark(self, first: bool = False) -> None:
        """Notes what is alive."""
        self._moments.append(
            Moment(
                self.activations, self.temporary, self.communication,
                self.gradients, self.fresh, first, bool(self._moments),
            )
        )  # fmt: skip

    # Backward.

    def play_back(self) -> None:
        """Runs the backward pass. The output's gradient must have been given."""
        self._moments = self.backward
        self.mark()  # before anything has run
        for step in reversed(self._steps):
            step()
        self.mark()

    def free(self, *values: Value) -> None:
        """An operation's backward lets go of what it kept, unless weights' gradients need it."""
        for value in () if self.halved else values:
            value.keepers -= 1
            if not value.keepers:
                self.activations -= value.counted

    def free_after(self, value: Value) -> None:
        """The same of an operation behind all weights: its part of the graph goes with the pass."""
        self.free(value)
        self.late += value.counted if self.halved else 0

    def new_gradient(self, size: int) -> Gradient:
        """Memory for the gradient of an activation."""
        self.hold(size)
        return Gradient(size)

    def read(self, value: Value) -> None:
        """An operation has used its output's gradient, and lets go of it."""
        assert value.gradient is not None
        self.release(value.gradient)

    def release(self, gradient: Gradient) -> None:
        """One reader less."""
        gradient.readers -= 1
        if not gradient.readers:
            if gradient.communication:
                self.communication -= gradient.bytes
            else:
                self.temporary -= gradient.bytes

    def arrive(self, value: Value, gradient: Gradient) -> None:
        """A gradient for a value: the first is taken as it is, the next added to it in new memory.

        (torch/csrc/autograd/input_buffer.cpp, `accumulate`.)
        """
        if value.gradient is None:
            value.gradient = gradient
            return
        total = self.new_gradient(gradient.bytes)
        self.release(value.gradient)
        self.release(gradient)
        value.gradient = total

    def read_for_weights(self, value: Value) -> None:
        """The same of an operation whose weights' gradients need the output's, too."""
        if not self.halved:
            self.read(value)

    def weight_gradient(self, elements: int) -> None:
        """The gradient of a weight has been computed."""
        if not self.halved:
            self.fresh += elements
            self.mark()

    def collect(self) -> None:
        """The data axis takes the weight gradients that were computed."""
        if not self.halved:
            self.mark(first=not self.gradients)
            self.gradients += self.fresh
            self.fresh = 0
