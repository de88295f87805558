"""`parallab predict` in a terminal."""

import json
import subprocess
import sys

import pytest

import parallab as pl
from parallab.cli import main


def test_the_table_says_that_it_is_predicted(capsys):
    flags = "--model nano --strategy zero1 --devices 4 --batch 8"
    assert main(["predict", *flags.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "Predicted for one warm step, with the CPU's kernels"
    assert "Memory at its peak, predicted, in KiB" in lines
    assert ["reduce_scatter", "dp", "4", "500,992", "375,744"] in [line.split() for line in lines]
    assert not [line for line in lines if line.startswith(("Loss", "Step"))]


def test_a_thousand_ranks_are_four_kinds(capsys):
    flags = "--model llama-3.1-70b --strategy 3d --dp 32 --pp 4 --tp 8 --precision bf16"
    assert main(["predict", *flags.split(), "--json", "-"]) == 0
    out, err = capsys.readouterr()
    report = pl.Report.from_dict(json.loads(out))
    assert report.source == "predicted"
    assert [rank.coords["pp"] for rank in report.ranks] == [0, 1, 2, 3]
    assert sum(report.environment["represents"].values()) == 1024
    assert "0 (of 256)" in err
    assert "to rank" not in err  # four of a thousand ranks are no matrix


def test_whose_kernels(capsys):
    flags = "--model gpt2 --precision bf16 --devices 2 --batch 2 --seq 512 --json - --kernels"
    peaks = []
    for kernels in ("cpu", "cuda"):
        assert main(["predict", *flags.split(), kernels]) == 0
        report = pl.Report.from_dict(json.loads(capsys.readouterr().out))
        assert report.environment["kernels"] == kernels
        peaks.append(report.peak_bytes)
    assert peaks[1] < peaks[0]


def test_a_picture(tmp_path):
    path = tmp_path / "plan.png"
    flags = "--model nano --strategy dp+pp --devices 4 --plot"
    assert main(["predict", *flags.split(), str(path)]) == 0
    assert path.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--strategy tp --devices 3", "does not divide by tp=3"),
        ("--device cpu", "there is no argument --device cpu here"),
    ],
)
def test_what_cannot_work(capsys, flags, reason):
    try:
        status = main(["predict", *flags.split()])
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert reason in capsys.readouterr().err


def test_it_needs_no_torch():
    code = (
        "import sys; from parallab.cli import main; main(['predict', '--model', 'nano']);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
