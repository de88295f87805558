"""Two collectives of flat tensors by one name: torch 2.13 renamed them and warns at the old."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

_any_dist: Any = dist
all_gather_flat = getattr(_any_dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_flat = (
    getattr(_any_dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)
