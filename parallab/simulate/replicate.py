"""DistributedDataParallel for fake ranks: its C++ reducer looks into tensors that have no data."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import (
    _DEFAULT_FIRST_BUCKET_BYTES,
    GradBucket,
    _compute_bucket_assignment_by_size,
)
from torch.nn.parallel import DistributedDataParallel


class FakeReplicate(DistributedDataParallel):
    """DDP without what needs data.

    In real life the first step reduces all gradients as one bucket and notes in which order they
    become ready; then buckets are made anew in that order, once. Here the one bucket stays, and
    from the second step on is reduced in pieces as large as the new buckets would be.
    """

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, init_sync=False, **options)
        self._ready: list[Tensor] = []
        self._pieces: list[int] = []
        self.reducer: Any = _Reducer(self.reducer, self._rebuild)
        self.register_comm_hook(None, lambda _, bucket: self._reduce(bucket))
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(self._note)

    def _note(self, parameter: Tensor) -> None:
        if self.require_backward_grad_sync and not self._pieces:
            self._ready.append(parameter)

    def _rebuild(self) -> None:
        """Before each forward pass: the sizes of the buckets, when the order is known."""
        if self._ready:
            limits = [_DEFAULT_FIRST_BUCKET_BYTES, self.bucket_bytes_cap]
            buckets, _ = _compute_bucket_assignment_by_size(self._ready, limits)
            sizes = [parameter.numel() for parameter in self._ready]
            self._pieces = [sum(sizes[at] for at in bucket) for bucket in buckets]
            self._ready = []

    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer()
        buffer.div_(dist.get_world_size(self.process_group))
        for piece in buffer.split(self._pieces or buffer.numel()):
            dist.all_reduce(piece, group=self.process_group)
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done


class _Reducer:
    """The C++ reducer, save that it does not compare bucket orders among ranks."""

    def __init__(self, reducer: Any, rebuild: Any) -> None:
        self._reducer, self._rebuild = reducer, rebuild

    def _rebuild_buckets(self) -> bool:
        self._rebuild()
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)
