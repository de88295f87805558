"""A Report as text: which figures, in which unit, labelled as what."""

import parallab as pl
from parallab.report import Communication, Span
from parallab.tables import aligned
from parallab.text import report_text
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


def test_a_pipeline_shows_axes_traffic_stages_and_bubble():
    report = recorded(plan=pl.Plan("dp+pp", 4, batch=8, micro_batches=2, seq=64))
    for rank in report.ranks:
        for step in rank.steps:
            step.communication.append(Communication("send", "pp", "other", 2, 100, 100))
            step.traffic = {(rank.rank + 2) % 4: 100, (rank.rank + 1) % 4: 500_992}
            # Two work all of the second in which any does, two half of it.
            step.begin, step.spans = 0.0, [Span("forward", 0, 0, 0.5 * (rank.rank > 1), 1.0)]
    report.environment |= {"cores": 2, "hosts": ["here"]}
    text = report_text(report)
    rows = [line.split() for line in text.splitlines()]
    assert ["sent", "on", "dp", "500,992", "500,992"] in rows
    assert ["sent", "on", "pp", "100", "100"] in rows
    assert (
        """\
Sent in step 4, from row to column, in KiB
(payload measured, its way computed for ideal rings)
to rank      0      1      2      3
rank 0       ·  489.2    0.1      ·
rank 1       ·      ·  489.2    0.1
rank 2     0.1      ·      ·  489.2
rank 3   489.2    0.1      ·      ·
"""
        in text
    )
    assert "stage 0 on ranks 0-1: embedding, block 0, 0.063 M parameters" in text
    assert text.endswith("""\
Bubble  idle/total 25.0 % measured, 33.3 % by the schedule; idle/ideal 33.3 % and 50.0 %
        (4 ranks share 2 cores: some wait for those)""")


def test_columns_are_aligned():
    assert aligned(("a", "bb"), [("xxx", "1"), ("y", "22,000")]) == (
        "a        bb\nxxx       1\ny    22,000"
    )
