"""The GPUs of this machine that torch can use, and which of them are free."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from parallab.cluster import leases
from parallab.units import percent

# A GPU counts as free while others use less of it than this; a display takes a little.
FREE_FRACTION = 0.9
DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")

# What torch says, in another process: asking it here would open a context on every GPU, which
# takes some hundred MB for as long as a notebook lives.
_ASK_TORCH = """
import json, torch
found = []
for i in range(torch.cuda.device_count()):
    about = torch.cuda.get_device_properties(i)
    free, total = torch.cuda.mem_get_info(i)
    found.append([i, f"GPU-{about.uuid}", about.name, free, total])
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        index: its number among those that this process may use.
        uuid: its name for CUDA_VISIBLE_DEVICES and for leases.
    """

    index: int
    uuid: str
    name: str
    free_bytes: int
    total_bytes: int

    @property
    def free(self) -> bool:
        """Whether nobody uses it to speak of, and no cluster has it."""
        return self.free_bytes >= FREE_FRACTION * self.total_bytes and not leases.taken(self.uuid)

    def __str__(self) -> str:
        if leases.taken(self.uuid):
            return f"{self.index} taken by a parallab cluster"
        used = 1 - self.free_bytes / self.total_bytes
        return f"{self.index} {'free' if self.free else f'{percent(used)} in use'}"


def free() -> list[Gpu]:
    """The GPUs that a cluster could take now."""
    return [gpu for gpu in present() if gpu.free]


def present() -> list[Gpu]:
    """Every GPU that torch can use here; none where torch was built without them."""
    if not built_with_gpus() or not any(Path(driver).exists() for driver in DRIVERS):
        return []
    found = _from_nvml()
    return _from_torch() if found is None else found


def built_with_gpus() -> bool:
    """Whether torch can use GPUs, without importing it."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return False
    version = runpy.run_path(str(Path(found.origin).with_name("version.py")))
    return bool(version.get("cuda") or version.get("hip"))


def _from_torch() -> list[Gpu]:
    asked = subprocess.run(
        [sys.executable, "-c", _ASK_TORCH],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,  # a driver that does not work is a machine without GPUs
    )
    return [Gpu(*row) for row in json.loads(asked.stdout)] if asked.returncode == 0 else []


def _from_nvml() -> list[Gpu] | None:
    """What the driver says; None where it cannot be asked, or may number GPUs unlike CUDA does."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        uuids = [_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        names = [_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        chosen = visible(uuids, names, os.environ)
        if chosen is None:
            return None
        gpus = []
        for index, i in enumerate(chosen):
            memory = pynvml.nvmlDeviceGetMemoryInfo(handles[i])
            free_bytes = int(memory.total) - int(memory.used)
            gpus.append(Gpu(index, uuids[i], names[i], free_bytes, int(memory.total)))
        return gpus
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def visible(
    uuids: Sequence[str], names: Sequence[str], environment: Mapping[str, str]
) -> list[int] | None:
    """The driver's numbers of the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order.

    As CUDA reads it, the first entry that names no GPU ends the list. CUDA puts the fastest first
    unless CUDA_DEVICE_ORDER=PCI_BUS_ID, and the driver goes by bus; on unlike GPUs plain numbers
    therefore say nothing.

    Returns:
        None where numbers cannot be translated.
    """
    wanted = environment.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for entry in (part.strip() for part in wanted.split(",")):
        if entry.isdigit():
            same_order = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
            if not same_order and len(set(names)) > 1:
                return None
            matches = [int(entry)] if int(entry) < len(uuids) else []
        else:
            matches = [i for i, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
        if len(matches) != 1:
            break
        chosen.append(matches[0])
    return chosen


def _text(value: str | bytes) -> str:
    """Older NVML bindings answer with bytes."""
    return value.decode() if isinstance(value, bytes) else value
