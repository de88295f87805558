"""`parallab lab`: the command line that JupyterLab gets."""

import argparse
import os
import sys

import pytest

from parallab.cli import lab, main
from parallab.cli.main import make_parser


def lab_command(*argv):
    args, rest = make_parser().parse_known_args(["lab", *argv])
    return lab.jupyter_command(argparse.Namespace(**{**vars(args), "rest": rest}))


def test_lab_opens_the_first_lab(monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert lab_command() == [
        sys.executable, "-m", "jupyterlab", str(lab.FIRST_LAB),
        "--LabApp.default_url=/lab/tree/00_start.ipynb",
    ]  # fmt: skip
    assert lab.FIRST_LAB.name == "00_start.ipynb"
    assert capsys.readouterr().err == ""


def test_lab_passes_arguments_on(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    notebook = tmp_path / "my own.ipynb"
    notebook.touch()
    command = lab_command(
        str(notebook), "--no-browser", "--port", "9999", "--ServerApp.token=x", "--debug"
    )
    assert command[3:] == [
        str(notebook), "--LabApp.default_url=/lab/tree/my%20own.ipynb", "--no-browser",
        "--port=9999", "--ServerApp.token=x", "--debug",
    ]  # fmt: skip


def test_root_is_allowed_and_told(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert lab_command(str(tmp_path))[-1] == "--allow-root"
    assert "--allow-root" in capsys.readouterr().err
    assert lab_command(str(tmp_path), "--allow-root").count("--allow-root") == 1


def test_lab_becomes_jupyter(monkeypatch, tmp_path):
    became = []
    monkeypatch.setattr(os, "execv", lambda path, argv: became.append((path, argv)) or sys.exit(0))
    with pytest.raises(SystemExit):
        main(["lab", str(tmp_path), "--no-browser"])
    [(path, argv)] = became
    assert path == argv[0] == sys.executable
    assert argv[1:5] == ["-m", "jupyterlab", str(tmp_path), "--no-browser"]


def test_lab_without_jupyterlab(monkeypatch, capsys):
    monkeypatch.setattr(lab.importlib.util, "find_spec", lambda name: None)
    assert main(["lab"]) == 2
    assert "JupyterLab is not installed for" in capsys.readouterr().err


def test_lab_without_a_checkout(monkeypatch, capsys, tmp_path):
    nowhere = tmp_path / "00_start.ipynb"
    monkeypatch.setattr(lab, "FIRST_LAB", nowhere)
    assert main(["lab", str(nowhere)]) == 2
    assert "The labs come with a checkout" in capsys.readouterr().err


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """The terminal of a JupyterHub server that shows a folder, and the address of a lab in it."""
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/ada/")
    monkeypatch.setenv("JUPYTER_SERVER_ROOT", str(tmp_path))
    monkeypatch.setattr(os, "execv", lambda path, argv: sys.exit(f"started {argv}"))
    notebook = tmp_path / "my labs" / "00_start.ipynb"
    notebook.parent.mkdir()
    notebook.touch()
    return notebook


def test_in_jupyterhub_the_running_lab_is_used(hub, capsys):
    assert main(["lab", str(hub)]) == 0
    said = capsys.readouterr().out
    assert said.endswith("Open /user/ada/lab/tree/my%20labs/00_start.ipynb\n")


def test_in_jupyterhub_a_lab_that_it_does_not_show_is_refused(hub, capsys, monkeypatch):
    monkeypatch.setenv("JUPYTER_SERVER_ROOT", str(hub.parent / "elsewhere"))
    assert main(["lab", str(hub)]) == 2
    assert "is not in it; `cp -r" in capsys.readouterr().err


def test_in_jupyterhub_a_port_starts_a_lab_all_the_same(hub):
    with pytest.raises(SystemExit, match="started"):
        main(["lab", str(hub), "--port", "0"])
