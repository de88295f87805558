"""Closed forms against numbers worked out by hand.

nano has 125,248 parameters: an embedding of 16,384, two blocks of 46,208 and a head of 16,448. Over
4 ranks all of it divides evenly, over 3 nothing does.
"""

import pytest

import parallab as pl
from parallab.predict.communication import (
    flat_elements,
    payload_per_step,
    receivers,
    row_elements,
    wire_bytes,
)
from parallab.predict.memory import model_states

NANO = pl.Model("nano")
P = 500_992  # bytes of nano's weights in fp32


@pytest.mark.parametrize(
    ("op", "sent_by_position"),
    [
        ("all_reduce", [1500, 1500, 1500, 1500]),
        ("all_gather", [750, 750, 750, 750]),
        ("reduce_scatter", [750, 750, 750, 750]),
        ("all_to_all", [750, 750, 750, 750]),
        ("broadcast", [1000, 1000, 1000, 0]),
        ("reduce", [0, 1000, 1000, 1000]),
        ("scatter", [750, 0, 0, 0]),
        ("gather", [0, 250, 250, 250]),
        ("send", [1000, 1000, 1000, 1000]),
        ("recv", [0, 0, 0, 0]),
        ("barrier", [0, 0, 0, 0]),
    ],
)
def test_wire_bytes_of_1000_over_4(op, sent_by_position):
    assert [wire_bytes(op, 1000, 4, position) for position in range(4)] == sent_by_position
    assert wire_bytes(op, 0, 4) == 0


@pytest.mark.parametrize("op", ["all_reduce", "broadcast", "gather", "send", "barrier"])
def test_alone_nothing_is_sent(op):
    assert wire_bytes(op, 1000, 1) == 0


def test_wire_bytes_of_an_unknown_operation():
    with pytest.raises(ValueError, match="no operation called 'shout'"):
        wire_bytes("shout", 1, 2)


@pytest.mark.parametrize(
    ("ranks", "flat", "rows"),
    [(1, 125_248, 125_248), (2, 125_248, 125_248), (3, 125_253, 127_242), (4, 125_248, 125_248)],
)
def test_padding(ranks, flat, rows):
    units = list(NANO.units().values())
    assert flat_elements(units, ranks) == flat
    assert row_elements(units, ranks) == rows


@pytest.mark.parametrize(
    ("strategy", "payload"),
    [
        ("single", {}),
        ("ddp", {"all_reduce": P}),
        ("zero1", {"reduce_scatter": P, "all_gather": P}),
        ("zero1-torch", {"all_reduce": P, "broadcast": P}),
        ("zero2", {"reduce_scatter": P, "all_gather": P}),
        ("zero3", {"all_gather": 2 * P, "reduce_scatter": P}),
        # Token ids are int64, and 8 × 128 tokens have 256 logits each.
        ("dp", {"scatter": 8_192 + 1_048_576, "broadcast": P, "gather": 1_048_576, "reduce": P}),
    ],
)
def test_payload_over_4(strategy, payload):
    plan = pl.Plan(strategy, batch=8, seq=128)
    assert payload_per_step(NANO, plan) == {(op, "dp"): size for op, size in payload.items()}


@pytest.mark.parametrize(
    ("strategy", "payload"),
    [
        ("ddp", {"all_reduce": P}),
        ("zero1", {"reduce_scatter": 501_012, "all_gather": 501_012}),
        ("zero2", {"reduce_scatter": 2 * 501_012, "all_gather": 501_012}),
        ("zero3", {"all_gather": 2 * 2 * 508_968, "reduce_scatter": 2 * 508_968}),
    ],
)
def test_payload_over_3_with_2_micro_batches(strategy, payload):
    plan = pl.Plan(strategy, 3, micro_batches=2)
    assert payload_per_step(NANO, plan) == {(op, "dp"): size for op, size in payload.items()}


# Activations of 8 x 128 tokens are 262,144 bytes. A layer has four all-reduces of them, embedding
# and head one each, and the loss has 3 numbers of 4 bytes a token: 12,288.
@pytest.mark.parametrize(
    ("choices", "payload"),
    [
        ({}, {("all_reduce", "tp"): 10 * 262_144 + 12_288}),
        ({"micro_batches": 4}, {("all_reduce", "tp"): 10 * 262_144 + 12_288}),
        ({"recompute": "full"}, {("all_reduce", "tp"): 12 * 262_144 + 12_288}),
        # Five norms of 64 weights, which every rank holds and uses on its part of the sequence.
        ({"sequence_parallel": True}, {
            ("all_gather", "tp"): 10 * 262_144,
            ("reduce_scatter", "tp"): 10 * 262_144,
            ("all_reduce", "tp"): 12_288 + 5 * 64 * 4,
        }),
        # The tensor axis spans the world, of which a norm is the sum.
        ({"clip": 1.0}, {("all_reduce", "tp"): 2_633_728 + 4}),
    ],
)  # fmt: skip
def test_payload_of_the_tensor_axis(choices, payload):
    assert payload_per_step(NANO, pl.Plan("tp", 2, batch=8, **choices)) == payload


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_payload_of_a_pipeline(schedule):
    plan = pl.Plan("pp", 2, batch=8, schedule=schedule)
    for pp in (0, 1):
        payload = payload_per_step(NANO, plan, {"dp": 0, "pp": pp, "tp": 0})
        assert payload == {("send", "pp"): 262_144, ("recv", "pp"): 262_144}


def test_payload_of_a_pipeline_with_two_stages_a_rank():
    deep = pl.Model("nano", layers=4)
    for schedule, borders in (("interleaved", (3, 3)), ("zbv", (2, 2))):
        plan = pl.Plan("pp", 2, batch=8, schedule=schedule)
        for pp, count in enumerate(borders):
            payload = payload_per_step(deep, plan, {"dp": 0, "pp": pp, "tp": 0})
            assert payload == {("send", "pp"): count * 262_144, ("recv", "pp"): count * 262_144}


# The first of two ranks holds the embedding (16,384) and a block (46,208 weights), the second a
# block and the head (16,448).
def test_payload_of_data_and_pipeline():
    plan = pl.Plan("dp+pp", 4, batch=8)
    for pp, weights in enumerate((250_368, 250_624)):
        assert payload_per_step(NANO, plan, {"dp": 1, "pp": pp, "tp": 0}) == {
            ("all_reduce", "dp"): weights, ("send", "pp"): 131_072, ("recv", "pp"): 131_072,
        }  # fmt: skip


# Of a block, tp 2 splits all but the two norms: 23,168 weights; of the ends, the vocabulary.
@pytest.mark.parametrize(
    ("zero", "weights", "reduced", "gathered"),
    [
        (1, (125_440, 125_696), 1, 1),
        (2, (125_440, 125_696), 4, 1),  # each of four micro-batches
        (3, (125_440, 125_696), 1, 5),  # before each forward pass but one, and two backward passes
    ],
)
def test_payload_of_3d(zero, weights, reduced, gathered):
    plan = pl.Plan("3d", 8, batch=8, zero=zero)
    for pp in (0, 1):
        assert payload_per_step(NANO, plan, {"dp": 0, "pp": pp, "tp": 1}) == {
            ("reduce_scatter", "dp"): reduced * weights[pp],
            ("all_gather", "dp"): gathered * weights[pp],
            ("send", "pp"): 131_072,
            ("recv", "pp"): 131_072,
            ("all_reduce", "tp"): 5 * 131_072 + (6_144 if pp else 0),
        }


def test_states_of_3d():
    plan = pl.Plan("3d", 8, batch=8, zero=1)
    assert model_states(NANO, plan) == dict(
        parameters=125_440, gradients=125_440, optimizer=125_440
    )


@pytest.mark.parametrize(
    ("op", "sent", "position", "by_distance"),
    [
        ("all_reduce", 1500, 0, {1: 1500}),
        ("broadcast", 1000, 2, {1: 1000}),
        ("broadcast", 0, 3, {}),
        ("reduce", 1000, 3, {-1: 1000}),
        ("scatter", 752, 0, {1: 251, 2: 251, 3: 250}),
        ("gather", 250, 3, {-3: 250}),
        ("send", 1000, 3, {-3: 1000}),
        ("all_to_all", 750, 1, {1: 250, 2: 250, 3: 250}),
    ],
)
def test_to_whom_the_bytes_of_an_operation_go(op, sent, position, by_distance):
    assert receivers(op, sent, 4, position) == by_distance


def test_bf16_halves_the_payload():
    plan = pl.Plan("zero3", precision="bf16")
    assert payload_per_step(NANO, plan) == {
        ("all_gather", "dp"): P, ("reduce_scatter", "dp"): P // 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "devices", "parameters", "gradients", "optimizer"),
    [
        ("single", 1, P, P, 2 * P),
        ("ddp", 4, P, P, 2 * P),
        ("zero1", 4, P, P, P // 2),
        ("zero1-torch", 4, P, P, P // 2),
        ("zero2", 4, P, P // 4, P // 2),
        ("zero3", 4, P // 4, P // 4, P // 2),
        ("dp", 4, P, P, 2 * P),
        ("zero1", 3, 501_012, 501_012, 334_008),
        ("zero2", 3, 501_012, 167_004, 334_008),
        ("zero3", 3, 169_656, 169_656, 339_312),
    ],
)
def test_model_states_of_rank_0(strategy, devices, parameters, gradients, optimizer):
    states = model_states(NANO, pl.Plan(strategy, devices))
    expected = dict(parameters=parameters, gradients=gradients, optimizer=optimizer)
    assert states == expected


def test_model_states_of_other_ranks():
    assert model_states(NANO, pl.Plan("dp"), rank=1) == dict(parameters=P, gradients=0, optimizer=0)
    assert model_states(NANO, pl.Plan("zero3", 3), rank=2) == dict(
        parameters=169_656, gradients=169_656, optimizer=323_360
    )


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 5, 7, 8, 300])
def test_zero3_shares_add_up_to_the_model(devices):
    plan = pl.Plan("zero3", devices)
    ranks = [model_states(NANO, plan, rank) for rank in range(devices)]
    # What is stepped is the model; what is stored is padded, on every rank alike.
    assert sum(states["optimizer"] for states in ranks) == 2 * P
    assert min(states["optimizer"] for states in ranks) >= 0
    assert {states["parameters"] for states in ranks} == {
        row_elements(NANO.units().values(), devices) // devices * 4
    }


@pytest.mark.parametrize(
    ("precision", "optimizer", "state_bytes"),
    [("fp32", "adamw", 8), ("fp32", "sgd", 0), ("bf16", "adamw", 12), ("bf16", "sgd", 4)],
)
def test_optimizer_bytes_per_parameter(precision, optimizer, state_bytes):
    states = model_states(NANO, pl.Plan("ddp", precision=precision, optimizer=optimizer))
    assert states["optimizer"] == 125_248 * state_bytes
