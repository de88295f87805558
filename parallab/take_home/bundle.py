"""What leaves the lab: a plan as a file, the command that trains it, and other packages' settings.

The torchrun command trains this very plan with parallab's own code. Accelerate's and DeepSpeed's
settings (`parallab.take_home.configs`) are for a training script of your own, where those packages
have an equivalent; where they have none, the reason stands in its place.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from parallab import html
from parallab.errors import ParallabError, PlanError
from parallab.models.spec import Model
from parallab.plan import Plan, check_both
from parallab.take_home.configs import FIRST_NODE, Equivalent, accelerate, deepspeed

PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class TakeHome:
    """A plan's files and commands.

    Attributes:
        command: trains the plan, in the folder that holds its files; on every node the same.
        equivalents: what other packages call it, or why they cannot.
    """

    model: Model
    plan: Plan
    nodes: int
    command: str
    equivalents: tuple[Equivalent, ...]

    @property
    def files(self) -> dict[str, str]:
        """Every file's name and text."""
        described = {"model": self.model.to_dict(), "plan": self.plan.to_dict()}
        configs = {e.file: e.text for e in self.equivalents if e.file is not None}
        return {
            PLAN_FILE: json.dumps(described, indent=1) + "\n",
            **configs,
            "README.md": f"# {self.model.name}: {self.plan}\n\n{_readme(self)}\n",
        }

    def save(self, folder: str | Path) -> Path:
        """Writes the files into a folder, which is made where there is none, and returns it.

        Raises:
            OSError: it cannot be written.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (folder / name).write_text(text, encoding="utf-8")
        return folder

    def __str__(self) -> str:
        parts = [
            f"{self.model}: {self.plan}",
            f"{PLAN_FILE} and this command train it:\n  {self.command}",
        ]
        for other in self.equivalents:
            command = f"\n  {other.command}" if other.command else ""
            with_file = f" ({other.file})" if other.file else ""
            parts.append(f"{other.package}{with_file}: {other.words}{command}")
        return "\n\n".join(parts)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [html.heading(f"{self.model.name}: take it home", str(self.plan)),
                 html.sentence(f"{PLAN_FILE} and this command train it:"),
                 html.preformatted(self.command),
                 html.fold(PLAN_FILE, html.preformatted(self.files[PLAN_FILE]))]  # fmt: skip
        for other in self.equivalents:
            parts += [html.heading(other.package), html.sentence(other.words)]
            if other.file:
                parts += [html.preformatted(other.command),
                          html.fold(other.file, html.preformatted(other.text))]  # fmt: skip
        return html.block(*parts)


def take_home(model: Model, plan: Plan, *, nodes: int = 1) -> TakeHome:
    """Everything that is needed to train this plan elsewhere.

    >>> print(take_home(Model("mini"), Plan("zero3", 4)).command)
    torchrun --standalone --nproc-per-node=4 -m parallab run --plan plan.json --json report.json

    Args:
        nodes: machines, each with as many ranks as the others.

    Raises:
        PlanError: the plan does not go with the model, or its ranks do not divide over the nodes.
    """
    check_both(model, plan)
    if nodes < 1 or plan.devices % nodes:
        fits = ", ".join(
            str(n) for n in range(1, min(plan.devices, 64) + 1) if not plan.devices % n
        )
        raise PlanError(
            f"{plan.devices} ranks do not divide over nodes={nodes}; nodes may be {fits}."
        )
    where = "--standalone" if nodes == 1 else (
        f"--nnodes={nodes} --rdzv-backend=c10d --rdzv-endpoint={FIRST_NODE}:29500"
    )  # fmt: skip
    command = (
        f"torchrun {where} --nproc-per-node={plan.devices // nodes} -m parallab run "
        f"--plan {PLAN_FILE} --json report.json"
    )
    return TakeHome(model, plan, nodes, command, (accelerate(plan, nodes), deepspeed(plan, nodes)))


def read_plan(path: str | Path) -> tuple[Model, Plan]:
    """The model and the plan in a file that `TakeHome.save` or `Report.save` wrote.

    Raises:
        PlanError: no such file, or it describes none; ModelError: a model that cannot be.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PlanError(f"{path} cannot be read as a plan: {reason}.") from None
    try:
        described, split = data["model"], data["plan"]
        unknown = split.keys() - Plan().to_dict().keys()
        if unknown:
            raise PlanError(f"A plan has no {', '.join(sorted(unknown))}.")
        model = Model(described) if isinstance(described, str) else Model.from_dict(described)
        return model, Plan.from_dict(split)
    except ParallabError as error:
        raise type(error)(f"{path}: {error}") from None
    except (KeyError, TypeError, AttributeError, ValueError):
        raise PlanError(
            f'{path} describes no plan: it must hold {{"model": …, "plan": {{"strategy": …, …}}}}, '
            "as `parallab take-home --to FOLDER` writes it."
        ) from None


def _readme(shown: TakeHome) -> str:
    lines = ["Needs parallab on every node. In this folder" + (
        ", on each node:" if shown.nodes > 1 else ":"), "", f"    {shown.command}"]  # fmt: skip
    for other in shown.equivalents:
        lines += ["", f"## {other.package}", "", other.words]
        lines += ["", f"    {other.command}"] if other.command else []
    return "\n".join(lines)
