"""Names that torch 2.13 has changed and warns about, and that torch 2.11 does not have yet."""

from __future__ import annotations

import inspect
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

_any_dist: Any = dist
all_gather_flat = getattr(_any_dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_flat = (
    getattr(_any_dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)

_new = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
# Keeps DDP from broadcasting buffers in every forward pass.
NO_BUFFER_BROADCAST: dict[str, Any] = {
    "forward_sync_buffers" if _new else "broadcast_buffers": False
}
