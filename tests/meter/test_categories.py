"""What memory is for, under DDP, `fully_shard` and recomputation."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from parallab.meter import Meter
from tests.meter.test_memory import CPU, DTYPES, mlp, train_step
from tests.ranks import run_ranks


def kept(by_category):
    return {category: size for category, size in by_category.items() if size}


def ddp_memory(rank, bucket_view):
    meter = Meter(CPU, {})
    module = DistributedDataParallel(mlp(64, 2), gradient_as_bucket_view=bucket_view)
    optimizer = torch.optim.AdamW(module.parameters())
    meter.watch(module, optimizer)
    steps = [train_step(meter, module, optimizer, index).memory for index in range(4)]
    meter.close()
    return [(m.at_peak, m.states) for m in steps]


@pytest.mark.parametrize("bucket_view", [False, True])
def test_ddp_buckets_are_gradients_or_communication_and_never_both(bucket_view):
    size = 2 * (64 * 64 + 64) * 4
    for steps in run_ranks(ddp_memory, 2, bucket_view):
        for at_peak, states in steps:
            assert states["gradients"] == at_peak["gradients"] == size
            assert at_peak["communication"] == (0 if bucket_view else size)
            assert at_peak["workspace"] < 1024


def sharded_memory(rank, precision):
    meter = Meter(CPU, {})
    module = mlp(64, 2).to(DTYPES[precision])
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    for layer in module:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    fully_shard(module, mesh=mesh)
    optimizer = torch.optim.AdamW(module.parameters())
    meter.watch(module, optimizer)
    traced = [train_step(meter, module, optimizer, index).memory for index in (0, 1)]
    train_step(meter, module, optimizer, 2, traced=False)
    traced.append(train_step(meter, module, optimizer, 3).memory)
    meter.close()
    return traced


@pytest.mark.parametrize(("precision", "e"), [("fp32", 4), ("bf16", 2)])
def test_fully_shard_halves_states_and_gathers_one_layer_at_a_time(precision, e):
    layer = (64 * 64 + 64) * e
    for steps in run_ranks(sharded_memory, 2, precision):
        for memory in steps:
            assert memory.states == {
                "parameters": layer,  # half of two
                "gradients": layer,
                "optimizer": 2 * layer + 4 * 4,
                "buffers": 0,
            }
            forward, backward, update = memory.phases
            assert forward.by_category["parameters"] == layer
            assert backward.by_category["parameters"] == layer
            unsharded = max(memory.series["unsharded"])
            # Backward: a layer's weights and gradients, and the next layer's weights beforehand.
            assert 2 * layer <= unsharded <= 3 * layer
            assert update.by_category["unsharded"] == 0
            assert update.by_category["gradients"] == layer
            assert max(memory.series["communication"]) >= layer


def recompute_activations(recompute):
    meter = Meter(CPU, {})
    module = mlp(64, 4)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    meter.watch(module, optimizer)

    def forward(inputs):
        for first in range(0, 8, 2):
            block = module[first : first + 2]
            inputs = checkpoint(block, inputs, use_reentrant=False) if recompute else block(inputs)
        return inputs

    memory = train_step(meter, module, optimizer, forward=forward).memory
    meter.close()
    return memory


def test_recomputation_keeps_each_blocks_input_and_one_block():
    tensor = 8 * 64 * 4
    scalar = 4
    # Per block, the input of its Linear and of its GELU; the last output feeds only the sum.
    plain = recompute_activations(recompute=False)
    assert plain.phases[0].by_category["activations"] == 8 * tensor + scalar
    less = recompute_activations(recompute=True)
    assert kept(less.phases[0].by_category) == {
        "parameters": 4 * (64 * 64 + 64) * 4,
        "activations": 4 * tensor,
        "temporary": 2 * tensor,  # of the last block
        # Each block keeps the random number generator's state, which no op makes.
        "workspace": 4 * torch.get_rng_state().nbytes,
    }
    # In backward one block's GELU input comes on top, where torch stops to compute again; and the
    # gradient of the loss is made before backward begins.
    assert max(less.series["activations"]) == 5 * tensor + 2 * scalar


def test_a_label_tells_what_the_meter_cannot_know():
    meter = Meter(CPU, {})
    module = nn.Linear(64, 64, bias=False)
    meter.watch(module, None)
    with meter.step(0, traced=True), meter.phase("forward"), torch.no_grad():
        output = module(torch.ones(8, 64))
        meter.label(output, "communication")
    memory = meter.take(None).memory
    meter.close()
    assert memory.at_peak["communication"] == output.nbytes
    with pytest.raises(AssertionError):
        meter.label(output, "luggage")
