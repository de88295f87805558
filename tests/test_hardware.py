"""GPUs, links, and which axis stays inside a node."""

import json

import pytest

import parallab as pl
from parallab.datasheets import GPUS, LINKS, NETWORKS, Gpu, Link, Network, preset_of
from parallab.units import GIB, gib


def test_ranks_of_one_node_pass_on_over_its_link():
    ring = pl.Hardware("h100", nodes=2).ring(1, 8)
    assert (ring.size, ring.nodes, ring.bytes_per_second) == (8, 1, 450e9)
    assert ring.latency_seconds == pytest.approx(7 * 3.4e-6)


def test_a_ring_through_two_nodes_sends_over_all_adapters_of_a_node_at_once():
    ring = pl.Hardware("h100", nodes=2).ring(1, 16)
    assert ring.nodes == 2
    assert ring.bytes_per_second == 8 * 50e9  # below NVLink's 450
    assert ring.latency_seconds == pytest.approx(14 * 3.4e-6 + 14e-6)


def test_a_tree_is_as_high_as_a_node_and_the_logarithm_of_the_nodes():
    ring = pl.Hardware("h100", nodes=512).ring(1, 4096)
    assert ring.tree_seconds == pytest.approx(7 * 3.4e-6 + 9 * 14e-6)


def test_ranks_a_node_apart_each_have_one_adapter():
    hardware = pl.Hardware("h100", nodes=4)
    ring = hardware.ring(8, 4)
    assert (ring.nodes, ring.bytes_per_second) == (4, 50e9)
    assert ring.latency_seconds == pytest.approx(3 * 14e-6)
    assert hardware.ring(2, 16).bytes_per_second == 4 * 50e9


def test_the_link_inside_a_node_is_the_bound_where_it_is_slower():
    hardware = pl.Hardware("l4", nodes=2)
    assert hardware.ring(1, 16).bytes_per_second == 31.5e9


def test_a_slow_network_is_shared_by_the_gpus_of_a_node():
    hardware = pl.Hardware("a100-80", nodes=2, interconnect="slow")
    assert hardware.between.bytes_per_second == pytest.approx(25e9 / 8 / 8)
    assert hardware.ring(1, 16).bytes_per_second == pytest.approx(25e9 / 8)
    assert not hardware.fast
    assert pl.Hardware("a100-80", nodes=2).fast
    assert pl.Hardware("a100-80", interconnect="slow").fast  # nothing leaves the node


def test_groups_that_do_not_fit_their_nodes_are_as_slow_as_the_worst_of_them():
    # Of six GPUs a node, ranks 0-3 share one and ranks 4-7 lie on two.
    hardware = pl.Hardware("a100-80", nodes=2, gpus_per_node=6)
    ring = hardware.ring(1, 4)
    assert (ring.nodes, ring.bytes_per_second) == (2, 2 * 50e9)
    assert hardware.ring(1, 6).nodes == 1


def test_pipeline_neighbours_use_the_network_where_any_of_them_does():
    hardware = pl.Hardware("h100", nodes=2)
    assert hardware.hop(8, 2).name == "fast"
    assert hardware.hop(1, 8).name == "nvlink-4"
    assert hardware.hop(4, 4).name == "fast"


@pytest.mark.parametrize(
    ("plan", "inside"),
    [
        (pl.Plan("3d", dp=2, pp=2, tp=4), {"tp", "dp"}),
        (pl.Plan("3d", dp=4, pp=1, tp=4), {"tp"}),
        (pl.Plan("dp+pp", dp=2, pp=8), {"dp"}),
        (pl.Plan("zero3", 16), set()),
    ],
)
def test_which_axes_stay_inside_a_node_follows_from_the_ranks(plan, inside):
    hardware = pl.Hardware("h100", nodes=2)
    strides = {"tp": 1, "dp": plan.tp, "pp": plan.tp * plan.dp}
    found = {
        axis
        for axis, stride in strides.items()
        if (size := getattr(plan, axis)) > 1 and hardware.ring(stride, size).nodes == 1
    }
    # By hand: the axis' neighbours in the plan's own coordinates share a node.
    nodes = [rank // 8 for rank in range(16)]
    for axis in strides:
        others = [a for a in strides if a != axis]
        groups = {}
        for rank in range(16):
            at = plan.coordinates(rank)
            groups.setdefault(tuple(at[a] for a in others), set()).add(nodes[rank])
        if getattr(plan, axis) > 1:
            assert (axis in found) == all(len(group) == 1 for group in groups.values())
    assert found == inside


def test_memory_is_what_torch_reports_and_shown_in_gib():
    assert str(GPUS["h100"]) == "H100 SXM 80 GB (79.2 GiB)"
    assert GPUS["h100"].memory_bytes == round(79.18 * 2**30)
    assert gib(80e9) == "74.5 GiB"
    assert gib(2**30) == "1.0 GiB"
    assert gib(300 * 2**20) == "300 MiB"


@pytest.mark.parametrize("gpu", GPUS.values(), ids=str)
def test_every_preset_is_plausible(gpu):
    sold = int(gpu.title.split(" GB")[0].rpartition(" ")[2])
    # Stacks of GDDR and HBM are GiB, of which some are kept back; H200 is sold by what is left.
    assert 0.9 * sold < gpu.memory_bytes / GIB < sold
    assert gpu.fp32_flops < gpu.bf16_flops
    assert gpu.link in LINKS
    assert "data sheet" in gpu.source


def test_units_of_networks_are_bits():
    assert NETWORKS["fast"].link(8).bytes_per_second == 50e9
    assert NETWORKS["slow"].link(1).bytes_per_second == 3.125e9
    assert pl.Hardware(nodes=2, interconnect=100).between.bytes_per_second == 100e9 / 8 / 8
    assert pl.Hardware(nodes=2, interconnect="100").between.bytes_per_second == 100e9 / 8 / 8


def test_own_gpus_links_and_networks():
    gpu = Gpu("mine", 10 * GIB, 1e12, 1e14, 1e13)
    hardware = pl.Hardware(
        gpu, 2, 2, link=Link("bus", 5e9, 1e-5), interconnect=Network("wire", 8e9, False, "a wire")
    )
    assert hardware.ring(1, 2).bytes_per_second == 5e9
    assert hardware.ring(2, 2).bytes_per_second == 1e9
    assert hardware.free_bytes == (10 * GIB,) * 4


def test_free_memory_and_headroom():
    hardware = pl.Hardware("t4", gpus_per_node=2, free_bytes=(4 * GIB, 10 * GIB), headroom=0.5)
    assert hardware.room_bytes == (2 * GIB, 5 * GIB)
    assert pl.Hardware("t4", gpus_per_node=2, free_bytes=GIB, headroom=0).room_bytes == (GIB, GIB)
    grown = hardware.with_nodes(2)
    assert (grown.devices, grown.free_bytes) == (4, (4 * GIB,) * 4)
    assert grown.gpu == hardware.gpu


def test_hardware_is_plain_data():
    data = json.loads(json.dumps(pl.Hardware("b200", nodes=2).to_dict()))
    assert data["gpu"]["name"] == "b200"
    assert data["interconnect"]["bits_per_second"] == 400e9
    assert len(data["free_bytes"]) == 16


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gpu": "h10"}, "There is no GPU called 'h10'. Choose one of t4, v100-16"),
        ({"gpu": None}, "There is no GPU called None"),
        ({"link": "nvlink"}, "There is no link called 'nvlink'. Choose one of nvlink-2"),
        ({"interconnect": "quick"}, "There is no interconnect called 'quick'. Choose one of fast"),
        ({"interconnect": 0}, "interconnect=0.0 must be a number above 0."),
        ({"interconnect": "1e400"}, "There is no interconnect called '1e400'"),
        ({"nodes": 0}, "nodes=0 must be a whole number from 1 to 65,536."),
        ({"nodes": True}, "nodes=True must be a whole number"),
        ({"gpus_per_node": 2.5}, "gpus_per_node=2.5 must be a whole number"),
        ({"nodes": 60_000, "gpus_per_node": 8}, "is 480,000 GPUs; the most is 65,536."),
        ({"headroom": 1}, "headroom=1 must be a number from 0 to 0.95."),
        ({"headroom": "much"}, "headroom='much' must be a number"),
        ({"free_bytes": (1, 2, 3)}, "free_bytes names 3 GPUs, and there are 8"),
        ({"free_bytes": -1}, "free_bytes=-1 must be a number from 0"),
        ({"free_bytes": 2**37}, "is 128.0 GiB, more than the H100 SXM 80 GB (79.2 GiB) has"),
        ({"interconnect": None}, "There is no interconnect called None"),
    ],
)
def test_what_cannot_be_is_refused_in_words(given, message):
    with pytest.raises(pl.HardwareError) as caught:
        pl.Hardware(**given)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Gpu("mine", 0, 1e12, 1e14, 1e13),
        lambda: Gpu("mine", GIB, 1e12, -1, 1e13),
        lambda: Link("bus", float("nan"), 1e-5),
        lambda: Link("bus", 1e9, 2),
        lambda: Gpu("mine", GIB, 1e12, 1e14, 1e13, link="string"),
    ],
)
def test_own_values_that_cannot_be_are_refused(build):
    with pytest.raises(pl.HardwareError):
        build()


@pytest.mark.parametrize(
    ("device", "total_gib", "preset"),
    [
        ("NVIDIA A100-SXM4-80GB", 79.15, "a100-80"),
        ("NVIDIA A100-SXM4-40GB", 39.38, "a100-40"),
        ("NVIDIA H100 80GB HBM3", 79.1, "h100"),
        ("NVIDIA H200", 139.8, "h200"),
        ("Tesla V100-SXM2-16GB", 15.77, "v100-16"),
        ("Tesla T4", 14.56, "t4"),
        ("NVIDIA GeForce RTX 4090", 23.6, "rtx-4090"),
        ("NVIDIA L40S", 44.4, "l40s"),
        ("AMD Instinct MI300X", 191.98, "mi300x"),
        ("NVIDIA H100 PCIe", 79.1, None),  # slower
        ("NVIDIA H100 NVL", 93.1, None),
        ("NVIDIA A10G", 22.06, None),
        ("NVIDIA GeForce GTX 1080", 7.9, None),
    ],
)
def test_presets_by_the_name_that_a_device_has(device, total_gib, preset):
    found = preset_of(device, round(total_gib * GIB))
    assert (found and found.name) == preset


def test_rings_are_found_quickly_for_the_largest_hardware():
    hardware = pl.Hardware("h100", nodes=8192)
    assert hardware.ring(1, 65_536).nodes == 8192
    assert hardware.ring(65_536 // 2, 2).nodes == 2
    assert hardware.ring(4, 4).nodes == 2
