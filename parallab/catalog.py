"""The named strategies: what each is called, what its idea is, where it comes from.

A row says which mesh axes the strategy may use and what happens on the data axis; `Plan` turns that
into degrees, and `parallel/` into code. The panel's choices, the terminal's and the tests' are read
from here, so a new row appears in all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parallab.errors import PlanError

DataAxis = Literal["none", "dp", "replicate", "zero1", "zero1-torch", "zero2", "zero3"]
# What the data axis does at each ZeRO stage.
STAGES: tuple[DataAxis, ...] = ("replicate", "zero1", "zero2", "zero3")


@dataclass(frozen=True)
class Strategy:
    """One row of the catalogue.

    Attributes:
        name: what the terminal and `Plan` call it.
        title: what a person calls it.
        idea: one paragraph for a newcomer.
        source: the paper or documentation that it follows.
        implementation: whose code runs.
        axes: mesh axes it may use.
        data: what the data axis does.
    """

    name: str
    title: str
    idea: str
    source: str
    implementation: str
    axes: tuple[str, ...]
    data: DataAxis

    @property
    def zero(self) -> int:
        """The ZeRO stage of the data axis, 0 where nothing is sharded."""
        return int(self.data[4]) if self.data.startswith("zero") else 0


_ROWS = (
    Strategy(
        "single", "Single device",
        "One device holds everything and sees the whole batch. No communication: the yardstick "
        "that every other strategy is compared with, in memory, in bytes and in weights.",
        "the baseline", "torch", (), "none",
    ),
    Strategy(
        "dp", "DataParallel",
        "One process drives all devices. Each step, rank 0 scatters the batch and broadcasts the "
        "weights, gathers every output, computes the loss, scatters its gradient and reduces the "
        "weights' gradients. Only rank 0 owns an optimizer: it is the hot spot, in memory and on "
        "the wire.",
        "torch.nn.DataParallel documentation",
        "parallab, over the process group (torch's needs one process that sees all GPUs)",
        ("dp",), "dp",
    ),
    Strategy(
        "ddp", "DistributedDataParallel",
        "Every rank holds a full copy of the model and trains on its share of the batch. Gradients "
        "are averaged by all-reduce in buckets while the backward pass is still running.",
        "Li et al., arXiv:2006.15704", "torch DistributedDataParallel", ("dp",), "replicate",
    ),
    Strategy(
        "zero1", "ZeRO-1",
        "As DDP, but each rank keeps the optimizer state of one share of the parameters only: it "
        "reduce-scatters the gradients, updates its share, and all-gathers the new parameters. The "
        "bytes on the wire are those of DDP.",
        "Rajbhandari et al., arXiv:1910.02054, section 5.1", "parallab, flat shards", ("dp",),
        "zero1",
    ),
    Strategy(
        "zero1-torch", "ZeRO-1 (torch)",
        "torch's own ZeRO-1: whole parameters are dealt out to ranks, gradients are all-reduced as "
        "in DDP, and each owner broadcasts its parameters after the step: half as many bytes again "
        "as the paper needs.",
        "torch.distributed.optim.ZeroRedundancyOptimizer documentation",
        "torch DistributedDataParallel and ZeroRedundancyOptimizer", ("dp",), "zero1-torch",
    ),
    Strategy(
        "zero2", "ZeRO-2",
        "As ZeRO-1, and a full gradient lives only until it is reduced: the backward pass "
        "reduce-scatters each block's gradients as soon as they are complete and frees them.",
        "Rajbhandari et al., arXiv:1910.02054, section 5.2", "parallab, flat shards", ("dp",),
        "zero2",
    ),
    Strategy(
        "zero3", "ZeRO-3 (FSDP)",
        "The parameters are sharded as well. Each block is all-gathered just before its forward "
        "pass and again before its backward pass, and freed after each: the smallest memory of the "
        "data-parallel family, for half as many bytes again on the wire.",
        "Rajbhandari et al., arXiv:1910.02054, section 5.3; Zhao et al., arXiv:2304.11277",
        "torch fully_shard (FSDP2)", ("dp",), "zero3",
    ),
    Strategy(
        "mp", "Model parallelism",
        "Consecutive layers on consecutive ranks, and the whole batch walks through them: each "
        "rank holds only its layers, and while one works all others wait.",
        "Huang et al., arXiv:1811.06965, section 1",
        "torch.distributed.pipelining, one micro-batch", ("pp",), "none",
    ),
    Strategy(
        "pp", "Pipeline",
        "As model parallelism, with the batch cut into micro-batches that follow one another, so "
        "that the ranks work at the same time. What stays idle is the bubble; what waits between "
        "forward and backward is memory. The schedule decides both.",
        "Huang et al., arXiv:1811.06965; Narayanan et al., arXiv:2104.04473; Qi et al., "
        "arXiv:2401.10241",
        "torch.distributed.pipelining", ("pp",), "none",
    ),
    Strategy(
        "tp", "Tensor",
        "Every layer's matrices are split over all ranks, by columns and then by rows, so that "
        "each computes a part of every layer. Activations are summed over the ranks four times a "
        "layer: it wants the fastest link there is.",
        "Shoeybi et al., arXiv:1909.08053; sequence parallelism: Korthikanti et al., "
        "arXiv:2205.05198",
        "parallab, four all-reduces a layer (torch's parallelize_module needs seven by default)",
        ("tp",), "none",
    ),
    Strategy(
        "dp+pp", "Data + pipeline",
        "Several pipelines, each on its share of the batch. Activations travel along a pipeline, "
        "gradients between the pipelines.",
        "Narayanan et al., arXiv:2104.04473, section 3.3",
        "torch.distributed.pipelining; parallab's flat all-reduce or ZeRO shards",
        ("dp", "pp"), "replicate",
    ),
    Strategy(
        "3d", "3D",
        "All three axes: tensor where the link is fastest, pipeline across, and data around, with "
        "ZeRO on the data axis. What trains the largest models.",
        "Narayanan et al., arXiv:2104.04473; Rajbhandari et al., arXiv:1910.02054, section 2",
        "torch.distributed.pipelining and fully_shard; parallab's tensor axis and ZeRO shards",
        ("dp", "pp", "tp"), "zero1",
    ),
)  # fmt: skip

STRATEGIES: dict[str, Strategy] = {row.name: row for row in _ROWS}


def strategy(name: str) -> Strategy:
    """The catalogue's row called `name`.

    Raises:
        PlanError: there is none.
    """
    try:
        return STRATEGIES[name]
    except (KeyError, TypeError):
        raise PlanError(
            f"There is no strategy called {name!r}. Choose one of {', '.join(STRATEGIES)}."
        ) from None
