"""DDP's buckets: the groups of gradients that one all-reduce moves."""

from __future__ import annotations

import math
from collections.abc import Sequence

from parallab.predict.parts import Unit

# A small first bucket, so that communication begins early (arXiv:2006.15704, section 3.2.3;
# torch/nn/parallel/distributed.py).
FIRST_BUCKET_BYTES = 2**20
BUCKET_BYTES = 25 * 2**20


def ddp_buckets(units: Sequence[Unit], element: int) -> int:
    """How many buckets a model's gradients fill, in the order in which backward makes them.

    A bucket is closed by the gradient that fills it (`compute_bucket_assignment_by_size` in
    torch/csrc/distributed/c10d/reducer.cpp).
    """
    buckets, filled, limit = 0, 0, FIRST_BUCKET_BYTES
    for unit in reversed(units):
        for shape in reversed(unit.values()):
            filled += math.prod(shape) * element
            if filled >= limit:
                buckets, filled, limit = buckets + 1, 0, BUCKET_BYTES
    return buckets + (filled > 0)
