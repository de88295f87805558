"""The grid of ranks: one named axis for each way of splitting."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from parallab.plan import Plan

# Tensor-parallel neighbours talk most and pipeline neighbours least, so tp is the innermost axis.
AXES = ("pp", "dp", "tp")


def form_mesh(plan: Plan, device: torch.device) -> DeviceMesh | None:
    """The mesh of the plan's axes, outermost first; None where there is one rank.

    Axes of degree 1 are left out: they would cost a process group each and carry nothing.
    """
    if plan.devices == 1:
        return None
    names = tuple(axis for axis in AXES if getattr(plan, axis) > 1)
    shape = tuple(getattr(plan, axis) for axis in names)
    with unset_fake_temporarily():  # its ranks' numbers are needed on fake ranks too
        return init_device_mesh(device.type, shape, mesh_dim_names=names)


def axis_names(mesh: DeviceMesh | None) -> dict[str, str]:
    """Process-group name -> mesh axis.

    An axis that spans the whole world reuses the default group, whose own name says nothing.
    """
    names: dict[str, str] = {}
    if dist.group.WORLD is not None:
        names[dist.group.WORLD.group_name] = "world"
    if mesh is not None and mesh.mesh_dim_names:
        names.update({mesh.get_group(axis).group_name: axis for axis in mesh.mesh_dim_names})
    return names


def coordinates(mesh: DeviceMesh | None) -> dict[str, int]:
    """This rank's place on every axis."""
    present = mesh.mesh_dim_names if mesh is not None and mesh.mesh_dim_names else ()
    return {
        axis: mesh.get_local_rank(axis) if mesh is not None and axis in present else 0
        for axis in ("dp", "pp", "tp")
    }
