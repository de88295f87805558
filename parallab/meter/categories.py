"""What every byte is for: storages followed from birth to death.

On a traced step a `TorchDispatchMode` sees every op, and with it every new storage; a weak
reference tells when it is gone. What a storage is for follows from when it was made (forward,
backward, optimizer), from the op that made it, and, if it lasts, from the module or optimizer that
holds it. The category belongs to the whole life: what the end of backward finds in `.grad` was a
gradient from its first byte, so the log keeps storages, and categories are read when it is over.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, UntypedStorage
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from parallab.meter.fake import FakeMemory
from parallab.meter.timeline import Timeline
from parallab.report import CATEGORIES

_CUDA_BLOCK_BYTES = 512  # what torch's CUDA allocator rounds to
_PLAIN = (Tensor, torch.nn.Parameter)
_DEVICE = torch.ops.prim.device.default
_WORKSPACE = CATEGORIES.index("workspace")


class Block:
    """One storage that is followed.

    Attributes:
        bytes: its size at this moment, as the allocator rounds it.
        category: what it is for, as far as is known by now.
        turn: how many times forward had turned into backward when it was made.
        maker: "empty" for memory that was only reserved, "collective" for a functional
            collective's result, "" for a computed value.
    """

    __slots__ = ("bytes", "category", "maker", "reference", "turn")

    def __init__(self, category: str, turn: int, maker: str) -> None:
        self.bytes = 0
        self.category = category
        self.turn = turn
        self.maker = maker
        self.reference: weakref.ref[UntypedStorage] | None = None


@dataclass
class Row:
    """Bytes at one moment: by category in the order of CATEGORIES, workspace included.

    Attributes:
        stretch: counts up where a phase begins or ends; two passes of one kind differ in it.
    """

    seconds: float
    phase: str
    by_category: list[int]
    stretch: int = 0

    @property
    def total(self) -> int:
        """Their sum."""
        return sum(self.by_category)


@dataclass
class _Log:
    """One step: storages there from the beginning, changes of size, and moments to look at."""

    base: list[tuple[Block, int]] = field(default_factory=list)
    changes: list[tuple[Block, int]] = field(default_factory=list)
    # (changes so far, seconds, phase, stretch, allocator's total)
    samples: list[tuple[int, float, str, int, int | None]] = field(default_factory=list)


class CategoryTracker(TorchDispatchMode):
    """Follows storages through one traced step after the other.

    - parameters, buffers, gradients, optimizer: what `hold` was given; the first claim counts, so
      that a flat buffer shared by several tensors is counted once.
    - activations: made in forward and alive when backward begins, token ids included; also what
      recomputation makes again.
    - temporary: made in backward or in the optimizer and held by nothing; made in forward and gone
      before backward.
    - unsharded: parameters that `fully_shard` has gathered and their full gradients.
    - communication: buffers that collectives read or write and that are nothing else (DDP's
      buckets, `fully_shard`'s flat inputs and outputs).

    Memory that torch did not allocate (a NumPy array's, say) is not followed.

    Args:
        timeline: the clock, and the phase of each moment.
        device: whose memory; storages elsewhere are ignored.
        total_bytes: the total that categories are held against, None where it is not known.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: that would import the compiler, which takes seconds, and slow down every op."""
        return False

    def __init__(
        self, timeline: Timeline, device: torch.device, total_bytes: Callable[[], int | None]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._timeline = timeline
        self._device_type = device.type
        self._total_bytes = total_bytes
        self._blocks: dict[int, Block] = {}
        self._log = _Log()
        self._sampled: tuple[int, int | None] = (0, None)
        self._recording = False
        self._turn = 0
        self._forward = True

    @contextmanager
    def recorded_step(self, held: Iterable[tuple[str, Tensor]]) -> Iterator[None]:
        """Follows what happens inside.

        Args:
            held: what lasts, as (category, tensor), for `hold`.
        """
        self._log = _Log()
        self._turn += 1
        self._forward = True
        for block in list(self._blocks.values()):
            storage = block.reference() if block.reference else None
            if storage is not None:
                block.bytes = self._rounded(storage)
        self.hold(held)
        self._log.base = [(block, block.bytes) for block in list(self._blocks.values())]
        self._recording = True
        self.sample()
        try:
            with watched_resize(self), self:
                yield
            self.sample()
        finally:
            self._recording = False

    def hold(self, held: Iterable[tuple[str, Tensor]]) -> None:
        """Labels tensors that last; of several claims to one storage, the first counts."""
        claimed = set()
        for category, tensor in held:
            storage = storage_of(tensor, self._device_type)
            if storage is None or storage._cdata in claimed:
                continue
            claimed.add(storage._cdata)
            block = self._blocks.get(storage._cdata) or self._old(storage, category)
            if block.category != "unsharded":
                block.category = category

    def label(self, tensor: Tensor, category: str) -> None:
        """Says what a tensor is for, where neither its maker nor its holder tells."""
        assert category in CATEGORIES, category
        block = self._known(tensor) if self._recording else None
        if block is not None:
            block.category = category

    def forget(self) -> None:
        """Follows nothing any more."""
        self._blocks = {}
        self._log = _Log()

    def sample(self) -> None:
        """Looks at the totals of this moment."""
        changes = len(self._log.changes)
        total = self._total_bytes()
        if (changes, total) != self._sampled or not self._log.samples:
            self._sampled = (changes, total)
            now, phase = self._timeline.since_begin(), self._timeline.phase.name
            self._log.samples.append((changes, now, phase, self._timeline.stretch, total))

    def tracked_bytes(self) -> int:
        """Bytes of all storages that are followed, at this moment."""
        return sum(block.bytes for block in list(self._blocks.values()))

    def rows(self) -> list[Row]:
        """The step that is over, moment by moment."""
        log, at = self._log, 0
        bytes_of = dict.fromkeys(CATEGORIES, 0)
        for block, size in log.base:
            bytes_of[block.category] += size
        rows = []
        for changes, seconds, phase, stretch, total in log.samples:
            for block, difference in log.changes[at:changes]:
                bytes_of[block.category] += difference
            at = changes
            row = Row(seconds, phase, list(bytes_of.values()), stretch)
            if total is not None:
                row.by_category[_WORKSPACE] = max(0, total - row.total)
            rows.append(row)
        return rows

    # Ops.

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs the op and looks at what it made."""
        if DTensor in types:
            return NotImplemented  # it will call ops on its local tensors, which come by here
        if func is _DEVICE:  # a fake tensor is asked where it is, more often than anything else
            return func(*args)
        result = func(*args, **(kwargs or {}))
        self._observe(func, args, kwargs or {}, result)
        # Reading the CPU's total costs next to nothing; CUDA's takes longer than most ops.
        if self._device_type == "cpu" or len(self._log.changes) != self._sampled[0]:
            self.sample()
        return result

    def _observe(self, func: Any, args: tuple[Any, ...], kwargs: Any, result: Any) -> None:
        category = self._category_now()
        match func.namespace:
            case "c10d":
                for tensor in _tensors(args):
                    self._hand_over(tensor)
            case "_c10d_functional" | "_dtensor":
                backward = category == "temporary"
                for tensor in _tensors(result):
                    self._see(tensor, "communication" if backward else category, "collective")
            case "fsdp":
                self._see_fsdp(func._schema.name, args, kwargs, result, category)
            case _:
                kind = _kind(func)
                if kind == "writes":
                    for tensor in _tensors(result):
                        self._known(tensor)
                elif kind != "view":
                    for tensor in _tensors(result):
                        self._see(tensor, category, kind)

    def _category_now(self) -> str:
        # Recomputation runs inside backward too, but with gradients enabled.
        if torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled():
            self._turn += self._forward
            self._forward = False
            return "temporary"
        if self._timeline.phase.name == "optimizer":
            return "temporary"
        self._forward = True
        return "activations"

    def _see_fsdp(
        self, name: str, args: tuple[Any, ...], kwargs: Any, result: Any, category: str
    ) -> None:
        out = kwargs.get("out", ())
        if name == "fsdp::all_gather_copy_in":
            labelled = [("communication", result)]
        elif name == "fsdp::split_with_sizes_copy":
            labelled = [("unsharded", out)]
        elif name == "fsdp::chunk_cat":
            labelled = [("unsharded", args[0]), ("communication", out)]
        else:
            labelled = []
        for label, tensors in labelled:
            for tensor in _tensors(tensors):
                block = self._see(tensor, label, "")
                if block is not None:
                    block.category = label

    # Storages.

    def _known(self, tensor: Tensor) -> Block | None:
        storage = storage_of(tensor, self._device_type)
        block = None if storage is None else self._blocks.get(storage._cdata)
        if storage is not None and block is not None:
            self._resize(block, self._rounded(storage))
        return block

    def _see(self, tensor: Tensor, category: str, maker: str) -> Block | None:
        """The block of an op's result, which is new unless it is known."""
        storage = storage_of(tensor, self._device_type)
        if storage is None or (maker == "lift" and not storage.resizable()):
            return None
        block = self._blocks.get(storage._cdata)
        if block is None:
            block = self._add(storage, category, maker)
        self._resize(block, self._rounded(storage))
        return block

    def _old(self, storage: UntypedStorage, category: str) -> Block:
        """A block that has been there all along and is seen for the first time."""
        block = self._add(storage, category, "")
        block.bytes = self._rounded(storage)
        self._log.base.append((block, block.bytes))
        return block

    def _hand_over(self, tensor: Tensor) -> None:
        """An argument of a collective: if it is nothing else, it is a communication buffer."""
        block = self._known(tensor)
        storage = storage_of(tensor, self._device_type)
        if block is None and storage is not None:
            self._old(storage, "communication")
        elif block is not None and (
            block.category == "temporary"
            or (block.category == "activations" and block.maker == "empty")
        ):
            block.category = "communication"

    def _add(self, storage: UntypedStorage, category: str, maker: str) -> Block:
        block = Block(category, self._turn, maker)
        key = storage._cdata

        def gone(_: object) -> None:
            if self._blocks.get(key) is block:
                del self._blocks[key]
            if block.category == "activations" and block.turn == self._turn:
                block.category = "communication" if maker == "collective" else "temporary"
            self._resize(block, 0)

        block.reference = weakref.ref(storage, gone)
        self._blocks[key] = block
        return block

    def _resize(self, block: Block, size: int) -> None:
        if size != block.bytes:
            if self._recording:
                self._log.changes.append((block, size - block.bytes))
            block.bytes = size

    def resized(self, storage: UntypedStorage) -> None:
        """After `storage.resize_`, by which `fully_shard` frees and allocates gathered weights."""
        block = self._blocks.get(storage._cdata)
        if block is None and storage.device.type != self._device_type:
            return
        block = block or self._add(storage, "unsharded", "")
        self._resize(block, self._rounded(storage))

    def _rounded(self, storage: UntypedStorage) -> int:
        size = storage.nbytes()
        if self._device_type == "cuda":
            return -(-size // _CUDA_BLOCK_BYTES) * _CUDA_BLOCK_BYTES
        return size


def storage_of(tensor: Tensor, device_type: str) -> UntypedStorage | None:
    """The storage of a tensor, of its local part where it is distributed; None if elsewhere."""
    while type(tensor) not in _PLAIN:
        if isinstance(tensor, DTensor):
            tensor = tensor._local_tensor
        elif isinstance(tensor, AsyncCollectiveTensor):
            tensor = tensor.elem
        elif isinstance(tensor, FakeTensor) and not isinstance(tensor.fake_mode, FakeMemory):
            return None  # DTensor asks for shapes with those
        else:
            break
    if tensor.device.type != device_type or tensor.layout is not torch.strided:
        return None
    return tensor.untyped_storage()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)


@functools.cache
def _kind(func: Any) -> str:
    """What an op's results are: "view", "writes" (its arguments), or of storages of their own."""
    name = func._schema.name if hasattr(func, "_schema") else ""
    if name == "aten::lift_fresh":
        return "lift"  # torch.tensor and torch.from_numpy
    if name.startswith(("aten::empty", "aten::new_empty")):
        return "empty"
    aliases = [r.alias_info for r in func._schema.returns if r.alias_info] if name else []
    if any(alias.is_write for alias in aliases):
        return "writes"
    return "view" if aliases else ""


class Resizable(Protocol):
    """Whoever wants to know when a storage changes its size."""

    def resized(self, storage: UntypedStorage) -> None:
        """It has just been resized."""


@contextmanager
def watched_resize(watcher: Resizable) -> Iterator[None]:
    """Tells the watcher of every `resize_`, which is not an op, so that no mode sees it."""
    original = UntypedStorage.resize_

    def resize_(storage: UntypedStorage, size: int) -> Any:
        result = original(storage, size)
        watcher.resized(storage)
        return result

    UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        UntypedStorage.resize_ = original  # type: ignore[method-assign]
