"""What a config leaves out, and other spellings of the same."""

import pytest

import parallab as pl
from tests.models.rows import GEMMA3_4B, GPT2, LLAMA, QWEN3_MOE, read, without


@pytest.mark.parametrize(
    ("kind", "kv_heads", "head_dim", "tied", "context", "theta"),
    [
        ("llama", 64, 4, False, 2048, 1e4),
        ("mistral", 8, 4, False, 131072, 1e4),
        ("qwen2", 32, 4, False, 32768, 1e4),
        ("qwen3", 32, 128, False, 32768, 1e4),
        ("gemma", 16, 256, True, 8192, 1e4),
        ("gemma2", 4, 256, True, 8192, 1e4),
        ("gemma3_text", 4, 256, True, 131072, 1e6),
        ("phi", 64, 4, False, 2048, 1e4),
        ("phi3", 64, 4, False, 4096, 1e4),
    ],
)
def test_defaults_are_the_family_s(kind, kv_heads, head_dim, tied, context, theta):
    model = read(LLAMA, model_type=kind, hidden_size=256, num_attention_heads=64)
    assert (model.kv_heads, model.head_dim, model.tied) == (kv_heads, head_dim, tied)
    assert (model.context, model.rope_theta) == (context, theta)


def test_an_explicit_null_means_as_many_as_heads():
    for kind in ("llama", "mistral", "qwen2", "qwen3", "phi3"):
        assert read(LLAMA, model_type=kind, num_key_value_heads=None).kv_heads == 4


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "mixtral", "phi3"])
def test_missing_or_null_head_dim(kind):
    config = dict(LLAMA, model_type=kind, num_local_experts=2, num_experts_per_tok=1,
                  num_key_value_heads=2)  # fmt: skip
    assert read(config).head_dim == read(config, head_dim=None).head_dim == 16
    assert read(config, head_dim=32).head_dim == 32


def test_nested_text_config_with_its_class_s_defaults():
    model = pl.Model.from_config(GEMMA3_4B)
    assert model.parameters == 3_880_263_168
    assert (model.heads, model.kv_heads, model.head_dim, model.vocab) == (8, 4, 256, 262208)
    # The text part alone, and one that does not name its family.
    assert pl.Model.from_config(GEMMA3_4B["text_config"]) == model
    inner = without(GEMMA3_4B["text_config"], "model_type")
    assert pl.Model.from_config({**GEMMA3_4B, "text_config": inner}) == model


def test_llavas_text_config_holds_no_size_but_one():
    text = dict(model_type="llama", vocab_size=32064, rms_norm_eps=1e-5)
    model = read(dict(model_type="llava", tie_word_embeddings=False), text_config=text)
    assert model.parameters == 6_738_939_904


@pytest.mark.parametrize(
    ("inner", "outer", "tied"),
    [({}, {}, False), ({}, {"tie_word_embeddings": True}, True),
     ({"tie_word_embeddings": False}, {"tie_word_embeddings": True}, False)],
)  # fmt: skip
def test_a_nested_config_inherits_the_tie(inner, outer, tied):
    text = {**LLAMA, "model_type": "mistral", "num_key_value_heads": 2, **inner}
    assert read({"model_type": "mistral3", **outer}, text_config=text).tied is tied


@pytest.mark.parametrize(
    ("changes", "theta"),
    [
        (dict(rope_theta=5e5), 5e5),
        (dict(rope_parameters=dict(rope_theta=5e5, rope_type="default")), 5e5),
        (dict(rope_theta=5e5, rope_scaling=dict(factor=8.0, rope_type="llama3")), 5e5),
        (dict(rope_theta=5e5, rope_scaling=None, rope_parameters=None), 5e5),
        (dict(rope_scaling=dict(rope_theta=5e5, rope_type="yarn", factor=4.0)), 5e5),
        (dict(rope_parameters=dict(full_attention=dict(rope_theta=2e6),
                                   sliding_attention=dict(rope_theta=1e4))), 2e6),
        (dict(rope_parameters=dict(full_attention=None)), 1e4),
    ],
)  # fmt: skip
def test_both_spellings_of_rotary_positions(changes, theta):
    assert read(LLAMA, **changes).rope_theta == theta


def test_partly_rotated_heads_in_both_spellings():
    phi = dict(LLAMA, model_type="phi")
    inside = dict(rope_parameters=dict(rope_theta=1e4, partial_rotary_factor=0.25))
    assert read(phi).rotary_dim == 8
    assert read(phi, partial_rotary_factor=0.25).rotary_dim == read(phi, **inside).rotary_dim == 4


def test_gpt2_in_both_spellings():
    usual = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=100,
                 max_position_embeddings=32)  # fmt: skip
    assert read(GPT2) == read(usual, model_type="gpt2") == read(GPT2, n_inner=256)
    assert read(GPT2, tie_word_embeddings=False).parameters - read(GPT2).parameters == 6400


def test_experts_in_both_spellings():
    config = without(QWEN3_MOE, "num_experts")
    assert read(config, num_local_experts=8) == read(QWEN3_MOE)


@pytest.mark.parametrize(
    "changes",
    [
        dict(use_sliding_window=False, sliding_window=131072, max_window_layers=1),
        dict(use_sliding_window=True, sliding_window=8),
        dict(layer_types=["full_attention", "sliding_attention"]),
        dict(intermediate_size=[96, 96], num_key_value_heads=[2, 2]),
        dict(quantization_config=dict(bits=4), torch_dtype="bfloat16", per_layer_config={}),
        dict(attention_bias=True, mlp_bias=True, qk_layernorm=True, alibi=True),
    ],
)
def test_what_changes_no_size_of_a_qwen2(changes):
    qwen2 = dict(LLAMA, model_type="qwen2", num_key_value_heads=2)
    assert read(qwen2, **changes) == read(qwen2)


@pytest.mark.parametrize(
    ("activation", "ours"),
    [("silu", "silu"), ("gelu", "gelu"), ("gelu_new", "gelu"), ("gelu_pytorch_tanh", "gelu")],
)
def test_activations(activation, ours):
    assert read(LLAMA, hidden_act=activation).activation == ours
    gemma = dict(LLAMA, model_type="gemma2", hidden_activation=None, hidden_act=activation)
    assert read(gemma).activation == ours
