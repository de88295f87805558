"""Memory that is not there: fake tensors know their shapes, and what they would take.

torch's `FakeTensorMode` runs any torch code on tensors without data: every operation tells the
shape and the type of its results and computes nothing. Their storages have sizes and lifetimes all
the same, so that the meters follow them as they follow real ones.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, UntypedStorage
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

_PLAIN = (Tensor, torch.nn.Parameter)
_ITEM = torch.ops.aten._local_scalar_dense.default
_DEVICE = torch.ops.prim.device.default
_LIFT = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)
# What an op may be told besides tensors and sizes.
_SETTINGS = frozenset(
    (int, float, bool, str, type(None), torch.dtype, torch.layout, torch.device,
     torch.memory_format)
)  # fmt: skip
_MOST_RECIPES = 20_000


class FakeMemory(FakeTensorMode):
    """Makes all tensors fake, and counts the bytes that those of the CPU would take.

    What was real before stays real and computes among its own kind: a mesh needs its ranks'
    numbers. The value of a fake number is 1.

    Attributes:
        bytes_alive: of all storages that are alive.
    """

    # Shapes of results by op and shapes of arguments, since layers and micro-batches repeat: takes
    # a third of the time of torch's own cache, whose keys must cover far more than occurs here.
    _recipes: ClassVar[dict[Any, list[_Result] | _Result]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: that would slow down every op."""
        return False

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.bytes_alive = 0
        self._alive: dict[int, tuple[weakref.ref[UntypedStorage], int]] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs an op on shapes alone, and counts the storages that it makes."""
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        if func is _ITEM and isinstance(args[0], FakeTensor):
            return 1
        signature = _signature(func, args, kwargs)
        recipe = self._recipes.get(signature)
        if recipe is not None:
            result = self._by_recipe(recipe, args)
        elif func not in _LIFT and _all_real(args):
            return func(*args, **(kwargs or {}))
        else:
            result = super().__torch_dispatch__(func, types, args, kwargs or {})
            self._learn(signature, args, result)
            if func in _LIFT and isinstance(result, FakeTensor):
                result.constant = None  # the real one would be kept beside it
        for tensor in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(tensor, FakeTensor) and tensor.fake_device.type == "cpu":
                self.resized(tensor.untyped_storage())
        return result

    def _by_recipe(self, recipe: list[_Result] | _Result, args: Sequence[Any]) -> Any:
        if isinstance(recipe, list):
            return [part.made(self, args) for part in recipe]
        return recipe.made(self, args)

    def _learn(self, signature: Any, args: Sequence[Any], result: Any) -> None:
        if signature is None or result is NotImplemented:
            return
        if len(self._recipes) >= _MOST_RECIPES:
            self._recipes.clear()
        if not isinstance(result, (list, tuple)):
            recipe = _how_made(result, args)
            if recipe is not None:
                self._recipes[signature] = recipe
            return
        parts = [_how_made(part, args) for part in result]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            self._recipes[signature] = known

    def resized(self, storage: UntypedStorage) -> None:
        """After a storage was made, or resized, which is no op."""
        key, size = storage._cdata, storage.nbytes()
        known = self._alive.get(key)
        if known is None:
            self._alive[key] = (weakref.ref(storage, lambda _: self._freed(key)), size)
            self.bytes_alive += size
        elif known[1] != size:
            self._alive[key] = (known[0], size)
            self.bytes_alive += size - known[1]

    def _freed(self, key: int) -> None:
        self.bytes_alive -= self._alive.pop(key)[1]


@dataclass(frozen=True, slots=True)
class _Result:
    """How one result of an op comes about.

    Attributes:
        argument: the one that it is, or whose storage it shares; None where it has its own.
        itself: whether it is that argument.
    """

    argument: int | None
    itself: bool
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    def made(self, mode: FakeMemory, args: Sequence[Any]) -> Tensor:
        """The result for these arguments."""
        if self.argument is None:
            data = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
            return FakeTensor(mode, data, self.device)
        source: Tensor = args[self.argument]
        if self.itself:
            return source
        data = torch.empty(0, dtype=self.dtype, device="meta")
        data.set_(source.untyped_storage(), self.offset, self.shape, self.stride)
        return FakeTensor(mode, data, self.device)


def _how_made(result: Any, args: Sequence[Any]) -> _Result | None:
    """How an op has made a result, None where that is not to be repeated."""
    if type(result) is not FakeTensor:
        return None
    storage, argument, itself = result.untyped_storage(), None, False
    for at, source in enumerate(args):
        if type(source) is FakeTensor and source.untyped_storage()._cdata == storage._cdata:
            argument, itself = at, itself or source is result
            if itself:
                break
    shape, stride, offset = tuple(result.shape), result.stride(), int(result.storage_offset())
    how = _Result(argument, itself, shape, stride, offset, result.dtype, result.fake_device)
    if argument is None:
        alone = torch.empty_strided(shape, stride, dtype=result.dtype, device="meta")
        if offset or alone.untyped_storage().nbytes() != storage.nbytes():
            return None
    return how


def _signature(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
    """All that the shapes of an op's results depend on, None where there may be more to it."""
    if not _depends_on_shapes(func):
        return None
    parts = [func]
    for value in (*args, *kwargs.items()) if kwargs else args:
        kind = type(value)
        if kind is FakeTensor:
            place = value.storage_offset(), value.dtype, value.fake_device
            parts.append((value.shape, value.stride(), place))
        elif kind in _SETTINGS:
            parts.append((kind, value))
        elif kind is list or kind is tuple:
            if any(type(part) not in _SETTINGS for part in value):
                return None
            parts.append((*map(type, value), *value))
        else:
            return None
    return tuple(parts)


@functools.cache
def _depends_on_shapes(func: Any) -> bool:
    """Whether an op only makes tensors: it gives no value, and changes none's own shape."""
    return (
        func.namespace == "aten" and func not in _LIFT and torch.Tag.inplace_view not in func.tags
    )


def _all_real(args: Sequence[Any]) -> bool:
    """Whether there are tensors among an op's arguments, none of them fake."""
    found = False
    for argument in args:
        for part in argument if isinstance(argument, (list, tuple)) else (argument,):
            if isinstance(part, Tensor):
                if type(part) not in _PLAIN:
                    return False
                found = True
    return found
