"""Bytes that torch's own allocator has handed out: the total that every category must add up to."""

from __future__ import annotations

import ctypes
from typing import Protocol

import torch
from torch._guards import active_fake_mode

from parallab.meter.fake import FakeMemory

# Where c10::ProfiledCPUMemoryReporter keeps `allocated_`, behind its mutex and its table of
# sizes (libstdc++, 64 bit). Nothing promises this, hence the self-test.
_ALLOCATED_OFFSET = 96


class Allocator(Protocol):
    """The allocator of one device."""

    def total_bytes(self) -> int | None:
        """Bytes handed out at this moment, by any thread; None where that cannot be known."""

    def peak_bytes(self) -> int | None:
        """The highest total since `reset_peak`; None where the allocator keeps none."""

    def reset_peak(self) -> None:
        """Starts a new peak."""


def allocator_of(device: torch.device) -> Allocator:
    """The allocator of a device, or of the fake memory that takes its place."""
    fake = active_fake_mode()
    if isinstance(fake, FakeMemory):
        return FakeAllocator(fake)
    return CUDAAllocator(device) if device.type == "cuda" else CPUAllocator()


class CPUAllocator:
    """The CPU's: c10 counts every allocation once it is told to, but remembers no peak.

    The counter is switched on when this file is imported and stays on, since it would lose track of
    blocks that are freed while it is off. It knows nothing of what was allocated before, and c10
    prints a warning where such a block is freed.
    """

    def __init__(self) -> None:
        self._counter = _COUNTER

    def total_bytes(self) -> int | None:
        """Bytes allocated since the counter was switched on and not freed."""
        return None if self._counter is None else self._counter.value

    def peak_bytes(self) -> int | None:
        """None: c10 keeps no peak."""
        return None

    def reset_peak(self) -> None:
        """Nothing to reset."""


class FakeAllocator(CPUAllocator):
    """Fake memory's, and of the little that is real beside it: numbers that became tensors."""

    def __init__(self, memory: FakeMemory) -> None:
        super().__init__()
        self._memory = memory

    def total_bytes(self) -> int:
        """Bytes that are alive."""
        return self._memory.bytes_alive + (super().total_bytes() or 0)


class CUDAAllocator:
    """One GPU's caching allocator: exact total and peak, in blocks of 512 bytes.

    What NCCL and the CUDA context take lies outside.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def total_bytes(self) -> int | None:
        """Bytes in live blocks."""
        return int(torch.cuda.memory_stats(self._device).get("allocated_bytes.all.current", 0))

    def peak_bytes(self) -> int | None:
        """The highest total since `reset_peak`, to the byte, also within one kernel's launch."""
        return int(torch.cuda.memory_stats(self._device).get("allocated_bytes.all.peak", 0))

    def reset_peak(self) -> None:
        """Starts a new peak."""
        torch.cuda.reset_peak_memory_stats(self._device)


def _cpu_counter() -> ctypes.c_size_t | None:
    """c10's running total, switched on; None where this build hides it or it fails its test."""
    try:
        # Loaded already, so that its name is enough.
        c10 = ctypes.CDLL("libc10.so")
        flag = ctypes.c_bool.in_dll(c10, "FLAGS_caffe2_report_cpu_memory_usage")
        reporter = c10["_ZN3c1025profiledCPUMemoryReporterEv"]
    except (OSError, ValueError, AttributeError):
        return None
    reporter.restype = ctypes.c_void_p
    flag.value = True
    counter = ctypes.c_size_t.from_address(reporter() + _ALLOCATED_OFFSET)
    # Another thread may allocate during a try, hence three.
    if any(_counts_4000_bytes(counter) for _ in range(3)):
        return counter
    flag.value = False
    return None


def _counts_4000_bytes(counter: ctypes.c_size_t) -> bool:
    before = counter.value
    tensor = torch.empty(1000, dtype=torch.float32)
    during = counter.value
    del tensor
    return during == before + 4000 and counter.value == before


_COUNTER = _cpu_counter()
