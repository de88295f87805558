"""`parallab lab`: JupyterLab on the first lab, in place of this process."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from urllib.parse import quote

import parallab
from parallab.cli.arguments import Commands, add_command, whole_number
from parallab.errors import PlanError

LABS = Path(parallab.__file__).parents[1] / "labs"
FIRST_LAB = LABS / "00_start.ipynb"


def add_commands(commands: Commands) -> None:
    """Registers `lab`."""
    parser = add_command(
        commands, "lab", open_lab, "opens JupyterLab on the first lab, or on another notebook"
    )
    parser.epilog = "Other arguments go to JupyterLab, as --name=value."
    parser.add_argument("notebook", nargs="?", type=Path, default=FIRST_LAB, metavar="NOTEBOOK")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.add_argument("--port", type=whole_number(0, 65_535), metavar="N",
                        help="JupyterLab's own choice unless given")  # fmt: skip


def open_lab(args: argparse.Namespace) -> int:
    """Becomes `jupyter lab`, so that signals, the exit status and its own configuration are its.

    In a terminal of JupyterHub, where a JupyterLab runs already, it says where the notebook is.

    Raises:
        PlanError: no JupyterLab, or no such notebook.
    """
    prefix = os.environ.get("JUPYTERHUB_SERVICE_PREFIX")
    if not prefix or args.port is not None or args.rest:
        os.execv(sys.executable, jupyter_command(args))  # noqa: S606
    print(f"JupyterHub runs a JupyterLab for you already. Open {hub_address(prefix, args)}")
    return 0


def hub_address(prefix: str, args: argparse.Namespace) -> str:
    """Where the person's own server of JupyterHub shows the notebook.

    Raises:
        PlanError: no such notebook, or outside of the folder that the server shows.
    """
    _check_notebook(args.notebook)
    root = Path(os.environ.get("JUPYTER_SERVER_ROOT", Path.home())).resolve()
    notebook = args.notebook.resolve()
    if not notebook.is_relative_to(root):
        raise PlanError(
            f"JupyterHub shows {root}, and {notebook} is not in it; "
            f"`cp -r {notebook.parent} {root}` brings it there. --port=0 starts another JupyterLab."
        )
    address = f"{prefix.rstrip('/')}/lab/tree/{quote(notebook.relative_to(root).as_posix())}"
    host = os.environ.get("JUPYTERHUB_HOST", "")  # set where each person has a domain
    return host + address


def _check_notebook(notebook: Path) -> None:
    if not notebook.exists():
        hint = ""
        if notebook == FIRST_LAB:
            hint = " The labs come with a checkout: clone the repository and `pip install -e .`."
        raise PlanError(f"There is no notebook {notebook}.{hint}")


def jupyter_command(args: argparse.Namespace) -> list[str]:
    """The command line of JupyterLab."""
    if importlib.util.find_spec("jupyterlab") is None:
        raise PlanError(
            f"JupyterLab is not installed for {sys.executable}; `pip install jupyterlab` adds it."
        )
    _check_notebook(args.notebook)
    command = [sys.executable, "-m", "jupyterlab", str(args.notebook)]
    if args.notebook.is_file():
        # Without this, the address printed for a browser elsewhere opens no notebook.
        command.append(f"--LabApp.default_url=/lab/tree/{quote(args.notebook.name)}")
    if args.no_browser:
        command.append("--no-browser")
    if args.port is not None:
        command.append(f"--port={args.port}")
    if hasattr(os, "geteuid") and os.geteuid() == 0 and "--allow-root" not in args.rest:
        print("You are root, so JupyterLab gets --allow-root.", file=sys.stderr)
        command.append("--allow-root")
    return [*command, *args.rest]
