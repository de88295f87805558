"""Exact parameter counts of public models, from their config.json."""

import json

import pytest

import parallab as pl
from parallab.models.families import FAMILIES
from parallab.models.shapes import count
from tests.models.rows import FILES, PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_parameters(name):
    config, parameters = PUBLIC[name]
    assert pl.Model.from_config(config).parameters == parameters


def test_every_family_is_counted():
    assert {config["model_type"] for config, _ in PUBLIC.values()} == set(FAMILIES)


@pytest.mark.parametrize("name", PUBLIC)
def test_units_add_up(name):
    model = pl.Model.from_config(PUBLIC[name][0])
    units = model.units()
    names = [n for shapes in units.values() for n in shapes]
    assert len(names) == len(set(names))
    assert sum(count(shapes) for shapes in units.values()) == model.parameters
    assert {n: model.shape(n) for n in names} == {
        n: s for shapes in units.values() for n, s in shapes.items()
    }


@pytest.mark.parametrize("name", PUBLIC)
def test_json_round_trip(name):
    model = pl.Model.from_config(PUBLIC[name][0], name)
    data = json.loads(json.dumps(model.to_dict()))
    assert data == model.to_dict()
    assert pl.Model.from_dict(data) == model


@pytest.mark.parametrize(
    ("name", "active"),
    [
        # What their papers call 13B, 39B, 3.3B, 22B, 21B and 37B, here with all embeddings.
        ("Mixtral-8x7B", 12_879_925_248),
        ("Mixtral-8x22B", 39_152_031_744),
        ("Qwen3-30B-A3B", 3_353_032_704),
        ("Qwen3-235B-A22B", 22_190_763_520),
        ("DeepSeek-V2", 21_375_800_320),
        ("DeepSeek-V3", 37_552_282_624),
    ],
)
def test_active_parameters(name, active):
    assert pl.Model.from_config(PUBLIC[name][0]).active_parameters == active


def test_a_dense_model_is_all_active():
    model = pl.Model("llama-3.1-8b")
    assert model.active_parameters == model.parameters


@pytest.mark.parametrize(
    ("preset", "name"),
    [
        ("llama-2-7b", "Llama-2-7b"),
        ("llama-3.1-70b", "Llama-3.1-70B"),
        ("qwen2.5-7b", "Qwen2.5-7B"),
        ("qwen3-8b", "Qwen3-8B"),
        ("gpt2-xl", "GPT-2-xl"),
    ],
)
def test_a_preset_is_its_config(preset, name):
    assert pl.Model(preset).units() == pl.Model.from_config(PUBLIC[name][0]).units()


def test_every_size_of_a_file():
    model = pl.Model.from_config(FILES["Phi-4-mini"][0], "phi-4-mini")
    assert model == pl.Model(
        "phi-4-mini", layers=32, hidden=3072, heads=24, kv_heads=8, head_dim=128, ffn=8192,
        vocab=200064, context=131072, norm_eps=1e-5, rope_theta=10000.0, rotary_dim=96, tied=True,
    )  # fmt: skip
