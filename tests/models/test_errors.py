"""Model.from_config: a sentence that names field and value for whatever is no config."""

import math
import re

import pytest

import parallab as pl
from tests.models.rows import (
    DEEPSEEK,
    FALCON,
    GPT2,
    LLAMA,
    MIXTURE,
    QWEN3_MOE,
    SIZES,
    read,
    without,
)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "None is no config: give a config.json's path, text or dict."),
        (3, "3 is no config"),
        ([LLAMA], "is no config"),
        (b"{}", "b'{}' is no config"),
        ("", "'' is no config"),
        (" \n", "is no config"),
        ("missing.json", "There is no file missing.json: give the path of a config.json."),
        ("null", "There is no file null"),
        ("a\0b", "There is no file a\0b"),
        ("x" * 5000, "cannot be read as a config: File name too long."),
        ("{", "This text is not JSON: Expecting property name"),
        ("{'model_type': 'llama'}", "This text is not JSON"),
        ("[" * 100_000, "This text is not JSON"),
        ("[1, 2]", "This text holds [1, 2], not a config's names and values."),
        ("{}", "This config has no model_type; parallab reads the families llama, mistral, "),
        ({"model_type": "bert"}, "This config has model_type='bert'; parallab reads the families"),
        ({"model_type": None}, "This config has no model_type"),
        ({"model_type": ["llama"]}, "This config has model_type=['llama']"),
        ({"model_type": "llama4", "text_config": {"model_type": "llama4_text"}},
         "This text_config has model_type='llama4_text'"),
        ({"model_type": "new", "text_config": {}}, "This text_config has no model_type"),
        ({"model_type": "new", "text_config": [1]}, "text_config=[1] must hold a config's names"),
    ],
)  # fmt: skip
def test_no_config(config, message):
    with pytest.raises(pl.ModelError, match=re.escape(message)):
        pl.Model.from_config(config)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON: Expecting value"),
        (b"layers: 3", "is not JSON"),
        (b"\xff\xfe\x00", "/config.json cannot be read as a config: 'utf-8' codec can't decode"),
        (b"[]", "holds [], not a config's names and values."),
        (b'"llama"', "holds 'llama', not a config's names and values."),
        (b" " * (2**24 + 1), "is larger than a config.json: is it one?"),
    ],
)
def test_a_file_that_is_no_config(tmp_path, content, message):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(pl.ModelError, match=re.escape(message)):
        pl.Model.from_config(file)


def test_a_folder_without_a_config(tmp_path):
    with pytest.raises(pl.ModelError, match=r"There is no file .*config\.json"):
        pl.Model.from_config(tmp_path)


NEEDED = [
    *((LLAMA, field) for field in LLAMA if field != "model_type"),
    *((GPT2, field) for field in GPT2 if field != "model_type"),
    *((FALCON, field) for field in FALCON if field != "model_type"),
    *((QWEN3_MOE, f) for f in ("num_experts", "num_experts_per_tok", "moe_intermediate_size")),
    *((DEEPSEEK, f) for f in ("n_routed_experts", "n_shared_experts", "num_experts_per_tok",
                              "moe_intermediate_size", "q_lora_rank", "kv_lora_rank",
                              "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")),
    (dict(LLAMA, model_type="gemma3_text"), "hidden_size"),
    (SIZES["Mixtral-8x7B"][0], "num_local_experts"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "field"), NEEDED)
def test_a_missing_size_is_named(config, field):
    read(config)
    message = f"A {config['model_type']} config needs {field}, and this one has none."
    with pytest.raises(pl.ModelError, match=message):
        read(without(config, field))


NOT_SIZES = ["96", "", True, False, 0, -1, 1.5, 64.0, math.nan, math.inf, [], [96], {}, 10**12]


@pytest.mark.parametrize("value", NOT_SIZES, ids=repr)
@pytest.mark.parametrize(("config", "field"), [n for n in NEEDED if n[1] != "n_shared_experts"])
def test_a_bad_size_is_named(config, field, value):
    with pytest.raises(pl.ModelError, match=rf"^{field}={re.escape(repr(value)[:25])}"):
        read(config, **{field: value})


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (LLAMA, dict(hidden_size=66), "hidden_size=66 does not divide into num_attention_heads=4"),
        (LLAMA, dict(num_key_value_heads=3),
         "num_attention_heads=4 cannot share num_key_value_heads=3 evenly; num_key_value_heads may "
         "be 1, 2, 4."),
        (LLAMA, dict(model_type="qwen2"), "num_attention_heads=4 cannot share "
         "num_key_value_heads=32 evenly"),
        (LLAMA, dict(head_dim=15), "head_dim=15 is odd"),
        (LLAMA, dict(model_type="qwen3", head_dim=None), "A qwen3 config needs head_dim"),
        (LLAMA, dict(attention_bias="no"), "attention_bias='no' must be true or false."),
        (LLAMA, dict(tie_word_embeddings=1), "tie_word_embeddings=1 must be true or false."),
        (LLAMA, dict(rms_norm_eps="1e-5"), "rms_norm_eps='1e-5' must be a number above 0."),
        (LLAMA, dict(rms_norm_eps=None), "rms_norm_eps=None must be a number above 0."),
        (LLAMA, dict(rope_theta=-1), "rope_theta=-1 must be a number above 0."),
        (LLAMA, dict(rope_theta=True), "rope_theta=True must be a number above 0."),
        (LLAMA, dict(rope_parameters=3), "rope_parameters=3 must hold names and values."),
        (LLAMA, dict(rope_scaling="yarn"), "rope_scaling='yarn' must hold names and values."),
        (LLAMA, dict(rope_parameters=dict(rope_theta="1e4")),
         "rope_parameters.rope_theta='1e4' must be a number above 0."),
        (LLAMA, dict(rope_parameters=dict(full_attention=[1])),
         "rope_parameters.full_attention=[1] must hold names and values."),
        (LLAMA, dict(hidden_act="relu"), "hidden_act='relu' is not one of silu, "),
        (LLAMA, dict(hidden_act=None), "hidden_act=None is not one of silu, "),
        (LLAMA, dict(hidden_act=["silu"]), "hidden_act=['silu'] is not one of silu, "),
        (LLAMA, dict(max_position_embeddings="2048"), "max_position_embeddings='2048' is not a"),
        (LLAMA, dict(intermediate_size=[96, 128]),
         "intermediate_size=[96, 128] differs between layers, which cannot be read."),
        (LLAMA, dict(per_layer_config={"0": {"intermediate_size": 8}}),
         "This llama config has a per_layer_config"),
        (GPT2, dict(add_cross_attention=True), "add_cross_attention=True makes this gpt2"),
        (GPT2, dict(n_inner=0), "n_inner=0 is not a size"),
        (GPT2, dict(activation_function="relu"), "activation_function='relu' is not one of"),
        (GPT2, dict(n_head=5), "n_embd=64 does not divide into n_head=5"),
        (FALCON, dict(new_decoder_architecture=True, num_kv_heads=3),
         "num_attention_heads=4 cannot share num_kv_heads=3 evenly; num_kv_heads may be 1, 2, 4."),
        (FALCON, dict(alibi="no"), "alibi='no' must be true or false."),
        (LLAMA, dict(model_type="phi", partial_rotary_factor=1.5),
         "partial_rotary_factor=1.5 turns 24 of the 16 numbers of a head"),
        (LLAMA, dict(model_type="phi", partial_rotary_factor=0.01),
         "partial_rotary_factor=0.01 turns 0 of the 16 numbers of a head"),
        (LLAMA, dict(model_type="phi3", hidden_size=66), "hidden_size=66 does not divide into"),
        (QWEN3_MOE, dict(num_experts_per_tok=9), "num_experts_per_tok=9 is more than num_experts="),
        (QWEN3_MOE, dict(mlp_only_layers=3), "mlp_only_layers=3 must be a list of layers."),
        (QWEN3_MOE, dict(mlp_only_layers=""), "mlp_only_layers='' must be a list of layers."),
        (QWEN3_MOE, dict(mlp_only_layers=[2]), "A layer of mlp_only_layers=2 is not a size: it "
         "must be a whole number from 0 to 1."),
        (QWEN3_MOE, dict(mlp_only_layers=["0"]), "A layer of mlp_only_layers='0' is not a size"),
        (QWEN3_MOE, dict(decoder_sparse_step=0), "decoder_sparse_step=0 is not a size"),
        (DEEPSEEK, dict(num_experts_per_tok=9),
         "num_experts_per_tok=9 is more than n_routed_experts=8."),
        (DEEPSEEK, dict(first_k_dense_replace=-1), "first_k_dense_replace=-1 is not a size: it "
         "must be a whole number from 0 to"),
        (DEEPSEEK, dict(n_shared_experts=-1), "n_shared_experts=-1 is not a size"),
        (DEEPSEEK, dict(n_shared_experts="2"), "n_shared_experts='2' is not a size"),
        (DEEPSEEK, dict(moe_layer_freq=0), "moe_layer_freq=0 is not a size"),
        (DEEPSEEK, dict(moe_layer_freq=[1, 0]), "moe_layer_freq=[1, 0] is not a size"),
        (DEEPSEEK, dict(qk_rope_head_dim=7), "qk_rope_head_dim=7 is odd"),
    ],
)  # fmt: skip
def test_bad_values_are_named(config, changes, message):
    with pytest.raises(pl.ModelError, match=re.escape(message)):
        read(config, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(experts=0), "experts_per_token=2 is for a mixture of experts, and experts=0"),
        (dict(experts=-1), "experts=-1 is not a size: it must be a whole number from 0 to"),
        (dict(experts_per_token=0), "A mixture of experts=8 needs experts_per_token as well."),
        (dict(expert_ffn=None), "A mixture of experts=8 needs expert_ffn as well."),
        (dict(experts_per_token=9), "experts_per_token=9 is more than experts=8."),
        (dict(dense_layers=[4]), "A layer of dense_layers=4 is not a size: it must be a whole "
         "number from 0 to 3."),
        (dict(dense_layers=[True]), "A layer of dense_layers=True is not a size"),
        (dict(dense_layers=2), "dense_layers=2 must be a list of layers."),
        (dict(block_norms=3), "block_norms=3 is not one of 1, 2, 4."),
        (dict(block_norms=True), "block_norms=True is not a size"),
        (dict(block_norms=1), "block_norms=1 is for parallel=True"),
        (dict(parallel="yes"), "parallel='yes' must be True or False."),
        (dict(rotary_dim=3), "rotary_dim=3 is odd; choose an even rotary_dim"),
        (dict(rotary_dim=10), "rotary_dim=10 is more than the head_dim=8 numbers of a head."),
        (dict(q_rank=8), "q_rank=8 is latent attention's: give kv_rank as well."),
        (dict(kv_rank=8, kv_heads=2), "Latent attention (kv_rank=8) has keys and values for each"),
        (dict(kv_rank=8, qk_norm=True), "Latent attention (kv_rank=8) has keys and values"),
    ],
)  # fmt: skip
def test_bad_sizes(changes, message):
    with pytest.raises(pl.ModelError, match=re.escape(message)):
        pl.Model("mine", **{**MIXTURE, **changes})
