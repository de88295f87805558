"""What there is to choose from, and the help."""

from types import SimpleNamespace

import pytest

import parallab as pl
from parallab.cli import main


def test_no_command_shows_the_help(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: parallab")
    assert "strategies" in err


def test_models(capsys):
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["nano", "125,248", "2", "64", "4/2", "176", "256", "1,024"]
    assert "llama-3.1-405b  405,853,388,800     126  16,384     128/8" in "\n".join(lines)
    assert len(lines) == 21


def test_strategies(capsys):
    assert main(["strategies"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("single: Single device\n  One device holds everything")
    assert "zero3: ZeRO-3 (FSDP)" in out
    assert "arXiv:1910.02054" in out
    assert max(map(len, out.splitlines())) <= 100


def test_gpus(capsys, stand_in):
    assert main(["gpus"]) == 0
    assert capsys.readouterr().out == "torch can use no GPU here; ranks run on the CPU.\n"
    stand_in.gpus = [
        SimpleNamespace(index=i, name="H200", free=not i, free_bytes=(140 - 70 * i) * 2**30,
                        total_bytes=140 * 2**30)
        for i in range(2)
    ]  # fmt: skip
    assert main(["gpus"]) == 0
    assert capsys.readouterr().out == (
        "gpu  name  free  GiB free  GiB in all\n"
        "0    H200  yes      140.0       140.0\n"
        "1    H200  no        70.0       140.0\n"
    )


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"parallab {pl.__version__}\n"


@pytest.mark.parametrize("command", ["lab", "run", "verify", "models", "strategies", "gpus"])
def test_every_command_has_help(capsys, command):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: parallab {command}")


def test_help_of_a_command_that_trains_names_every_flag(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    out = capsys.readouterr().out
    flags = (
        "--model --strategy --devices --dp --batch --seq --micro-batches --precision --recompute "
        "--optimizer --steps --seed --text --json --plot --device --trace-every --verbose"
    )
    assert [f for f in flags.split() if f"{f} " not in out and f"{f}\n" not in out] == []
