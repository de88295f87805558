"""Where a config comes from, and what the model is called."""

import copy
import json

import parallab as pl
from tests.models.rows import GEMMA3_4B, LLAMA, read


def test_file_folder_text_and_dict_are_the_same(tmp_path):
    folder = tmp_path / "Tiny-Llama"
    folder.mkdir()
    file = folder / "config.json"
    file.write_text("\ufeff" + json.dumps(LLAMA), encoding="utf-8")
    models = [pl.Model.from_config(c) for c in (file, str(file), folder, str(folder))]
    assert {m.name for m in models} == {"Tiny-Llama"}
    text = json.dumps(LLAMA, indent=1)
    models += [pl.Model.from_config(c, "Tiny-Llama") for c in (text, "\n " + text, LLAMA)]
    assert len(set(models)) == 1
    other = tmp_path / "mine.json"
    other.write_text(text)
    assert pl.Model.from_config(other).name == "mine"


def test_names():
    assert read(LLAMA).name == "llama"
    assert read(LLAMA, _name_or_path="meta-llama/Llama-2-7b-hf/").name == "Llama-2-7b-hf"
    assert read(LLAMA, _name_or_path="").name == read(LLAMA, _name_or_path=3).name == "llama"
    assert pl.Model.from_config({**LLAMA, "_name_or_path": "a/b"}, "mine").name == "mine"


def test_a_presets_name_brings_none_of_its_sizes():
    model = pl.Model.from_config(LLAMA, "gpt2")
    assert model.name == "gpt2"
    assert (model.mlp, model.norm, model.positions, model.qkv_bias, model.tied) == (
        "gated", "rms", "rope", False, False,
    )  # fmt: skip
    assert pl.Model.from_dict(model.to_dict()) == model


def test_a_config_is_left_as_it_was():
    config = copy.deepcopy(GEMMA3_4B)
    pl.Model.from_config(config)
    assert config == GEMMA3_4B
