"""Model: exact parameter counts, and sentences for sizes that cannot be."""

import math
import re

import pytest

import parallab as pl
from parallab.models.spec import PRESETS, count

# The families' unique parameters (a tied weight once), from modules built by transformers, and for
# our own presets from the sizes by hand.
PARAMETERS = {
    "nano": 125_248,
    "micro": 1_049_728,
    "mini": 4_854_016,
    "small": 25_436_672,
    "base": 111_008_256,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
}
OWN = dict(layers=2, hidden=32, heads=4, ffn=64, vocab=257)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name):
    assert pl.Model(name).parameters == PARAMETERS[name]


def test_every_preset_is_counted():
    assert set(PARAMETERS) == set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_units_add_up_and_names_are_unique(name):
    model = pl.Model(name)
    units = model.units()
    assert list(units) == ["embedding", *(f"blocks.{i}" for i in range(model.layers)), "head"]
    names = [n for shapes in units.values() for n in shapes]
    assert len(names) == len(set(names))
    assert sum(count(shapes) for shapes in units.values()) == model.parameters


@pytest.mark.parametrize("name", PRESETS)
def test_dict_round_trip(name):
    model = pl.Model(name)
    data = model.to_dict()
    assert data["parameters"] == PARAMETERS[name]
    assert pl.Model.from_dict(data) == model


def test_round_trip_of_changed_preset():
    model = pl.Model("llama-3.1-8b", layers=2, tied=True)
    assert pl.Model.from_dict(model.to_dict()) == model


def test_block_by_hand():
    shapes = pl.Model("nano").block_shapes()
    assert shapes == {
        "attention_norm.weight": (64,),
        "attention.q.weight": (64, 64),
        "attention.k.weight": (32, 64),
        "attention.v.weight": (32, 64),
        "attention.out.weight": (64, 64),
        "mlp_norm.weight": (64,),
        "mlp.gate.weight": (176, 64),
        "mlp.up.weight": (176, 64),
        "mlp.down.weight": (64, 176),
    }


def test_gpt2_block_by_hand():
    shapes = pl.Model("gpt2").block_shapes()
    assert "mlp.gate.weight" not in shapes
    assert shapes["attention.q.bias"] == (768,)
    assert shapes["mlp_norm.bias"] == (768,)
    assert count(shapes) == 7_087_872


def test_qwen3_head_is_wider_than_hidden_over_heads():
    model = pl.Model("qwen3-0.6b")
    shapes = model.block_shapes()
    assert model.head_dim == 128
    assert shapes["attention.q.weight"] == (2048, 1024)
    assert shapes["attention.q_norm.weight"] == (128,)


def test_tied_head_has_no_weight_of_its_own():
    untied = pl.Model("own", **OWN)
    tied = pl.Model("own", **OWN, tied=True)
    assert "head.output.weight" not in tied.head_shapes()
    assert untied.parameters - tied.parameters == 257 * 32


def test_learned_positions_are_parameters():
    rope = pl.Model("own", **OWN, context=100)
    learned = pl.Model("own", **OWN, context=100, positions="learned")
    assert learned.parameters - rope.parameters == 100 * 32


def test_odd_head_dim_goes_with_learned_positions():
    assert pl.Model("own", **{**OWN, "hidden": 12}, positions="learned").head_dim == 3


def test_a_changed_head_count_drops_the_presets_gqa():
    assert pl.Model("nano", heads=8).kv_heads == 8
    assert pl.Model("nano", heads=8, kv_heads=2).kv_heads == 2


def test_none_is_not_given():
    assert pl.Model("nano", kv_heads=None, qk_norm=None) == pl.Model("nano")


def test_a_model_is_hashable_and_frozen():
    model = pl.Model("nano")
    assert len({model, pl.Model("nano")}) == 1
    with pytest.raises(AttributeError):
        model.layers = 3


def test_str():
    assert str(pl.Model("llama-3.1-8b")) == "llama-3.1-8b (8.03 B parameters)"


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("mni", {}, "There is no model called 'mni'. Choose one of nano, micro, mini, "),
        ("", {}, "There is no model called ''"),
        ("own", dict(layers=2), "The model 'own' needs hidden, heads, ffn, vocab as well."),
        ("nano", dict(width=3), "A model has no size called width. Its sizes are layers, hidden,"),
        ("nano", dict(layers=0), "layers=0 is not a size: it must be a whole number from 1 to"),
        ("nano", dict(layers=-1), "layers=-1 is not a size"),
        ("nano", dict(layers=2.0), "layers=2.0 is not a size"),
        ("nano", dict(layers="2"), "layers='2' is not a size"),
        ("nano", dict(layers=True), "layers=True is not a size"),
        ("nano", dict(hidden=10**9), "hidden=1000000000 is not a size"),
        ("nano", dict(vocab=math.inf), "vocab=inf is not a size"),
        ("nano", dict(hidden=66), "hidden=66 does not divide into heads=4: give head_dim"),
        ("nano", dict(kv_heads=3), "heads=4 cannot share kv_heads=3 evenly; kv_heads may be "
         "1, 2, 4."),
        ("nano", dict(head_dim=15), "head_dim=15 is odd; choose an even head_dim"),
        ("nano", dict(mlp="moe"), "mlp='moe' is not one of gated, plain."),
        ("nano", dict(activation="relu"), "activation='relu' is not one of silu, gelu."),
        ("nano", dict(norm=0), "norm=0 is not one of rms, layer."),
        ("nano", dict(positions="sine"), "positions='sine' is not one of rope, learned, alibi."),
        ("nano", dict(positions=["rope"]), "positions=['rope'] is not one of rope, learned, "),
        ("nano", dict(norm_eps=0.0), "norm_eps=0.0 must be a number above 0."),
        ("nano", dict(norm_eps=math.nan), "norm_eps=nan must be a number above 0."),
        ("nano", dict(rope_theta="big"), "rope_theta='big' must be a number above 0."),
        ("nano", dict(rope_theta=True), "rope_theta=True must be a number above 0."),
        ("nano", dict(tied="no"), "tied='no' must be True or False."),
        (None, {}, "A model's name is a text, not None."),
        (3, {}, "A model's name is a text, not 3."),
        (["nano"], {}, "A model's name is a text, not ['nano']."),
    ],
)  # fmt: skip
def test_bad_sizes(name, sizes, message):
    with pytest.raises(pl.ModelError, match=re.escape(message)):
        pl.Model(name, **sizes)


def test_errors_are_value_errors():
    with pytest.raises(ValueError, match="no model called"):
        pl.Model("mni")
