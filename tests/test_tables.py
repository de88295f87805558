"""A Report as text: which figures, in which unit, labelled as what."""

import parallab as pl
from parallab.cli.tables import report_text, table
from tests.recorded import recorded


def test_report_text():
    assert (
        report_text(recorded())
        == """\
nano (0.1 M parameters): ddp on 2 (dp=2 pp=1 tp=1), batch 4 × 64 in 1 micro-batch, fp32, adamw
Measured on cpu, torch 2.13.0

Memory at its peak, measured in step 0, in KiB
rank  device      peak  parameters  gradients  workspace
0     cpu     1,024.00      489.25     489.25      45.50
1     cpu     1,025.00      489.25     489.25      46.50

Communication in step 4, rank 0, which sends most, in bytes
(calls and payload measured, wire computed for an ideal ring)
operation   axis  calls  payload     wire
all_reduce  dp        2  500,992  500,992
recv        dp        1       64        0
total sent               500,992  500,992

Loss  5.5000 → 5.1000 in 5 steps, measured
Step  210.0 ms, 1,219 tokens per second, measured: median of 3 untraced steps"""
    )


def test_report_text_of_nothing():
    assert report_text(recorded(0)).splitlines()[1:] == [
        "Measured on cpu, torch 2.13.0",
        "No step was finished.",
    ]


def test_report_text_of_a_short_run_says_that_bytes_are_not_settled():
    assert "bytes settle in step 3: train 4 steps or more" in report_text(recorded(3))
    assert "settle" not in report_text(recorded(4))


def test_report_text_without_an_untraced_step():
    assert report_text(recorded(2)).endswith(
        "measured: median of all steps, the first or traced ones too, which are slower"
    )


def test_report_text_without_communication():
    report = recorded(plan=pl.Plan("single"))
    for step in report.ranks[0].steps:
        step.communication.clear()
    assert "Communication in step 4, measured: none" in report_text(report)


def test_memory_is_shown_in_a_unit_that_suits(monkeypatch):
    report = recorded()
    for rank in report.ranks:
        rank.steps[0].memory.peak_bytes = 40 * 2**30
    assert "in GiB" in report_text(report)


def test_table():
    assert table(("a", "bb"), [("xxx", "1"), ("y", "22,000")]) == (
        "a        bb\nxxx       1\ny    22,000"
    )
