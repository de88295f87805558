"""Predicted memory against figures that others have printed."""

from __future__ import annotations

import pytest

from parallab.models.spec import Model
from parallab.plan import Plan
from parallab.predict.memory import model_states

# Rajbhandari et al., arXiv:1910.02054, table 1: GB a device of 7.5B, 128B and 1T parameters, with
# the optimizer's state, the gradients too, and the weights too divided by so many devices.
PAPER = {
    1: ("120 120 120", "2048 2048 2048", "16000 16000 16000"),
    4: ("52.5 41.3 30", "896 704 512", "7000 5500 4000"),
    16: ("35.6 21.6 7.5", "608 368 128", "4750 2875 1000"),
    64: ("31.4 16.6 1.88", "536 284 32", "4187 2218 250"),
    256: ("30.4 15.4 0.47", "518 263 8", "4046 2054 62.5"),
    1024: ("30.1 15.1 0.12", "513 257 2", "4011 2013 15.6"),
}
# As many parameters to within 0.004 %, in sizes that 1,024 divides, so that nothing is padded.
PAPER_MODELS = (
    Model("7.5B", layers=100, hidden=2048, heads=16, ffn=8192, vocab=385_024, tied=True),
    Model("128B", layers=128, hidden=8192, heads=64, ffn=28_672, vocab=420_864, tied=True),
    Model("1T", layers=103, hidden=24_576, heads=96, ffn=98_304, vocab=188_416, tied=True),
)


def test_states_are_the_zero_papers() -> None:
    for model, parameters in zip(PAPER_MODELS, (7.5e9, 128e9, 1e12), strict=True):
        assert model.parameters == pytest.approx(parameters, rel=4e-5)
    for devices, columns in PAPER.items():
        for model, column in zip(PAPER_MODELS, columns, strict=True):
            for stage, printed in enumerate(column.split(), start=1):
                plan = Plan(f"zero{stage}", devices, precision="bf16")
                held = sum(model_states(model, plan).values()) / 1e9
                last_digit = 10.0 ** -len(printed.partition(".")[2])
                # The paper rounds some numbers and cuts off others.
                assert held == pytest.approx(float(printed), abs=last_digit), (devices, printed)


@pytest.mark.parametrize(
    ("strategy", "states"),
    [
        ("ddp", 128_484_179_968),
        ("zero1", 44_166_436_864),
        ("zero2", 30_113_479_680),
        ("zero3", 16_060_522_496),
    ],
)
def test_states_of_llama_8b_in_bf16_with_fp32_masters(strategy: str, states: int) -> None:
    plan = Plan(strategy, 8, precision="bf16")
    assert sum(model_states(Model("llama-3.1-8b"), plan).values()) == states
