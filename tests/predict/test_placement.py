"""Where the stages of a pipeline are, in words."""

from parallab.models.spec import Model, count
from parallab.plan import Plan
from parallab.predict.parts import held_units
from parallab.predict.placement import stage_lines

MINE = Model("mine", layers=4, hidden=32, heads=4, ffn=64, vocab=257, tied=True)


def test_a_line_for_each_stage_and_one_for_its_ends():
    # A block: 4·32·32 + 3·32·64 + 2·32 = 10,304; the embedding: 257·32 = 8,224; a norm: 32.
    assert stage_lines(MINE, Plan("pp", 2)) == [
        "stage 0 on rank 0: embedding, blocks 0-1, 0.029 M parameters",
        "stage 1 on rank 1: blocks 2-3, head, 0.029 M parameters",
        "The embedding costs the first stage memory (0.008 M parameters), the head costs the last "
        "memory and time (0.008 M parameters).",
    ]


def test_a_v_puts_both_ends_on_rank_0():
    lines = stage_lines(MINE, Plan("pp", 2, schedule="zbv"))
    assert [line.split(":")[0] for line in lines[:4]] == [
        "stage 0 on rank 0", "stage 1 on rank 1", "stage 2 on rank 1", "stage 3 on rank 0",
    ]  # fmt: skip


def test_ranks_of_a_stage_differ_on_the_other_axes():
    plan = Plan("3d", dp=2, pp=2, tp=4, devices=16)
    lines = stage_lines(Model("gpt2-xl", heads=24, hidden=1536), plan)
    assert lines[0].startswith("stage 0 on ranks 0-7: embedding, blocks 0-")
    assert lines[1].startswith("stage 1 on ranks 8-15: blocks ")
    assert lines[1].endswith(" M parameters over tp=4")
    assert {plan.coordinates(rank)["pp"] for rank in range(8)} == {0}


def test_its_parameters_are_those_that_the_ranks_hold():
    model, plan = Model("base"), Plan("mp", 4)
    for pp, line in enumerate(stage_lines(model, plan)[:4]):
        held = sum(map(count, held_units(model, plan, pp)))
        assert line.endswith(f", {held / 1e6:.1f} M parameters")


def test_without_a_pipeline_there_is_nothing_to_say():
    assert stage_lines(MINE, Plan("ddp")) == []
    assert stage_lines(MINE, Plan("3d", dp=2, pp=1, tp=2)) == []
