"""The ranks that torchrun started, this process one of them: `torchrun … -m parallab run …`.

torchrun tells each process who it is by environment variables (torch.distributed.run). There are no
engines and no Jupyter: every rank trains, and rank 0 gathers what each step took.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import parallab
from parallab.errors import ClusterError, ModelError, ParallabError, PlanError, RankError
from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.report import WARM_STEP, Rank, Report, Step

if TYPE_CHECKING:
    import torch

    from parallab.rank.trainer import Trainer

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# What a rank waits for the others in one collective before it gives up.
TIMEOUT_SECONDS = 300


def launched() -> bool:
    """Whether torchrun, or something that sets the same variables, started this process."""
    return all(os.environ.get(name) for name in VARIABLES)


def world_size() -> int:
    """How many ranks there are."""
    return _number("WORLD_SIZE", 1)


def rank_here() -> int:
    """Which one this process is; 0 where it is the only one."""
    return _number("RANK", 0) if launched() else 0


class LaunchedRank:
    """This process as one rank of a run.

    Args:
        device: "cuda" gives each rank of a host its own GPU, "cpu" shares the cores; "auto" takes
            GPUs where there are any.
        seed, text, trace_every: as for `Cluster.submit`.

    Attributes:
        report: what all ranks have finished; on other ranks than 0 it stays empty.

    Raises:
        PlanError: the plan is for another number of ranks, or there are fewer GPUs than ranks.
        ModelError: a model that parallab cannot train.
        ClusterError: the ranks did not meet.
    """

    def __init__(
        self,
        model: Model,
        plan: Plan,
        *,
        device: str = "auto",
        seed: int = 0,
        text: str | None = None,
        trace_every: int = 5,
    ) -> None:
        if model.why_not_trainable:
            raise ModelError(model.why_not_trainable)
        plan.check(model)
        self.rank, world = rank_here(), world_size()
        if plan.devices != world:
            raise PlanError(
                f"This plan needs {plan.devices} ranks, and torchrun started {world}; start "
                f"{plan.devices} with --nproc-per-node (times --nnodes)."
            )
        self.report = Report("measured", model, plan)
        self._options = {"seed": seed, "text": text, "trace_every": trace_every}
        self._device = _device_here(device)
        self._group: Any = None
        if world > 1:
            self._meet()

    def train(self, steps: int, on_step: Callable[[Report], None] | None = None) -> None:
        """Builds this rank's part, and trains; rank 0's report grows with every step.

        Args:
            on_step: called on rank 0 after each step.

        Raises:
            RankError: this rank failed, or one that it waited for.
        """
        at = "while building the model"
        try:
            from parallab.rank.trainer import Trainer

            model, plan = self.report.model, self.report.plan
            trainer = Trainer(model, plan, self._device, **self._options)  # type: ignore[arg-type]
            self._introduce(trainer)
            for step in range(steps):
                at = f"in step {step}"
                self._keep(trainer.step())
                if self.rank == 0 and on_step is not None:
                    on_step(self.report)
            trainer.close()
        except ParallabError:
            raise
        except Exception as error:
            text = " ".join(str(error).split())[:500]
            raise RankError(
                f"Rank {self.rank} failed {at}: {type(error).__name__}: {text}", self.rank
            ) from error

    def close(self) -> None:
        """Leaves the process group. After a failure, end the process instead."""
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()

    def _meet(self) -> None:
        """Forms the process group, and on GPUs a second one over Gloo, for plain data."""
        import torch.distributed as dist

        if _number("LOCAL_WORLD_SIZE", 0) == world_size():  # nobody elsewhere needs to reach us
            import psutil

            names = [name for name, addresses in psutil.net_if_addrs().items()
                     if any(a.address == "127.0.0.1" for a in addresses)]  # fmt: skip
            os.environ.setdefault("GLOO_SOCKET_IFNAME", names[0] if names else "lo")
        gpu = self._device.type == "cuda"
        timeout = timedelta(seconds=TIMEOUT_SECONDS)
        try:
            dist.init_process_group(
                "nccl" if gpu else "gloo",
                timeout=timeout,
                device_id=self._device if gpu else None,
            )
            self._group = dist.new_group(backend="gloo", timeout=timeout)
        except Exception as error:
            where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise ClusterError(
                f"Rank {self.rank} of {world_size()} did not meet the others at {where}: "
                f"{' '.join(str(error).split())[:300]}"
            ) from error

    def _gather(self, mine: Any) -> list[Any] | None:
        """Everybody's on rank 0, None elsewhere."""
        import torch.distributed as dist

        if self._group is None:
            return [mine]
        all_ranks = [None] * world_size() if self.rank == 0 else None
        dist.gather_object(mine, all_ranks, group=self._group)
        return all_ranks

    def _introduce(self, trainer: Trainer) -> None:
        places = self._gather(trainer.describe())
        if places is None:
            return
        texts = {place["corpus"] for place in places}
        if len(texts) > 1:
            raise ClusterError(
                "The ranks read different texts; give a file that is the same on every host "
                "(--text)."
            )
        self.report.environment = {**_facts(), **self._options,
            "backend": "nccl" if self._device.type == "cuda" else "gloo",
            "hosts": list(dict.fromkeys(place["host"] for place in places)),
            "devices": [place["device"] for place in places],
            "text": self._options["text"] or "Python standard library",
            "corpus": places[0]["corpus"], "cap_bytes": None, "warm_step": WARM_STEP,
            "launched_by": "torchrun"
        }  # fmt: skip
        self.report.ranks = [Rank(p["rank"], p["coords"], p["device"], p["host"]) for p in places]

    def _keep(self, step: Step) -> None:
        for rank, record in zip(self.report.ranks, self._gather(asdict(step)) or (), strict=True):
            rank.steps.append(Step.from_dict(record))


def _device_here(device: str) -> torch.device:
    """This rank's own GPU of its host, or the CPU."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "cpu" or (device == "auto" and not gpus):
        return torch.device("cpu")
    local, ranks = _number("LOCAL_RANK", rank_here()), _number("LOCAL_WORLD_SIZE", world_size())
    if gpus < ranks:
        raise PlanError(
            f"{socket.gethostname()} has {gpus} GPUs for {ranks} ranks; start {gpus or 'none'} "
            "there (--nproc-per-node), or run on the CPU (--device cpu)."
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def _facts() -> dict[str, Any]:
    """What figures depend on besides model and plan, as a cluster's Reports have it."""
    import torch

    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "torch": torch.__version__,
        "parallab": parallab.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
    }


def _number(variable: str, otherwise: int) -> int:
    value = os.environ.get(variable, "")
    if not value:
        return otherwise
    if not value.isdecimal():
        raise PlanError(f"{variable}={value!r} in the environment is not a number of ranks.")
    return int(value)
