"""Model.from_config: exact counts of public models, and what their families leave out."""

import copy
import json

import pytest

import parallab as pl
from parallab.models.families import FAMILIES
from parallab.models.shapes import count
from tests.model_configs import (
    DEEPSEEK,
    FALCON,
    FILES,
    GPT2,
    LLAMA,
    MIXTURE,
    QWEN3_MOE,
    SIZES,
    read,
    without,
)

PUBLIC = {**SIZES, **FILES}


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


# Blocks that differ from a llama's.


def test_latent_attention_by_hand():
    assert read(DEEPSEEK).block_shapes(1) == {
        "attention_norm.weight": (64,),
        "attention.q_a.weight": (24, 64),
        "attention.q_a_norm.weight": (24,),
        "attention.q_b.weight": (4 * 24, 24),
        "attention.kv_a.weight": (20 + 8, 64),
        "attention.kv_a_norm.weight": (20,),
        "attention.kv_b.weight": (4 * (16 + 12), 20),
        "attention.out.weight": (64, 4 * 12),
        "mlp_norm.weight": (64,),
        "mlp.router.weight": (8, 64),
        "mlp.experts.gate.weight": (8, 16, 64),
        "mlp.experts.up.weight": (8, 16, 64),
        "mlp.experts.down.weight": (8, 64, 16),
        "mlp.shared.gate.weight": (32, 64),
        "mlp.shared.up.weight": (32, 64),
        "mlp.shared.down.weight": (64, 32),
    }


def test_queries_may_skip_the_narrow_layer():
    shapes = read(DEEPSEEK, q_lora_rank=None, attention_bias=True).block_shapes()
    assert [n for n in shapes if n.startswith("attention.")] == [
        "attention.q.weight", "attention.kv_a.weight", "attention.kv_a.bias",
        "attention.kv_a_norm.weight", "attention.kv_b.weight", "attention.out.weight",
        "attention.out.bias",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "dense"),
    [
        (dict(first_k_dense_replace=3), (0, 1, 2)),
        (dict(first_k_dense_replace=0), ()),
        (dict(first_k_dense_replace=9), (0, 1, 2, 3, 4, 5)),
        (dict(first_k_dense_replace=1, moe_layer_freq=2), (0, 1, 3, 5)),
    ],
)
def test_deepseeks_dense_layers(changes, dense):
    model = read(DEEPSEEK, num_hidden_layers=6, **changes)
    assert model.dense_layers == dense
    sparse = [i for i in range(6) if "mlp.router.weight" in model.block_shapes(i)]
    assert sparse == [i for i in range(6) if i not in dense]
    assert all(model.block_shapes(i)["mlp.up.weight"] == (96, 64) for i in dense)


def test_dense_layers_that_the_class_gives():
    assert read(without(DEEPSEEK, "first_k_dense_replace")).dense_layers == ()
    v3 = without({**DEEPSEEK, "model_type": "deepseek_v3"}, "first_k_dense_replace")
    assert read(v3, num_hidden_layers=5).dense_layers == (0, 1, 2)


@pytest.mark.parametrize(
    ("changes", "dense"),
    [
        ({}, ()),
        (dict(mlp_only_layers=None), ()),
        (dict(mlp_only_layers=[3, 0]), (0, 3)),
        (dict(decoder_sparse_step=2), (0, 2, 4)),
        (dict(decoder_sparse_step=2, mlp_only_layers=[1]), (0, 1, 2, 4)),
    ],
)
def test_qwens_dense_layers(changes, dense):
    assert read(QWEN3_MOE, num_hidden_layers=6, **changes).dense_layers == dense


def test_kinds_of_blocks():
    assert read(LLAMA).block_kinds() == {0: 2}
    assert read(QWEN3_MOE).block_kinds() == {0: 2}
    assert read(QWEN3_MOE, mlp_only_layers=[0, 1]).block_kinds() == {0: 2}
    assert read(QWEN3_MOE, num_hidden_layers=6, mlp_only_layers=[3]).block_kinds() == {0: 5, 3: 1}
    assert read(DEEPSEEK, num_hidden_layers=6).block_kinds() == {0: 1, 1: 5}


@pytest.mark.parametrize(
    ("changes", "norms", "parallel", "kv_heads"),
    [
        ({}, 1, True, 1),  # 7B
        (dict(multi_query=False), 1, True, 4),
        (dict(parallel_attn=False), 2, False, 1),
        (dict(new_decoder_architecture=True, num_kv_heads=2), 2, True, 2),  # 40B
        (dict(new_decoder_architecture=True), 2, True, 4),
        (dict(new_decoder_architecture=True, num_ln_in_parallel_attn=1), 1, True, 4),  # 11B
        (dict(num_kv_heads=2), 1, True, 1),
    ],
)
def test_falcons(changes, norms, parallel, kv_heads):
    model = read(FALCON, **changes)
    assert (model.block_norms, model.parallel, model.kv_heads) == (norms, parallel, kv_heads)
    assert model.ffn == 4 * 64
    assert model.tied
    assert model.block_shapes()["attention.k.weight"] == (kv_heads * 16, 64)
    assert sum(n.endswith("norm.weight") for n in model.block_shapes()) == norms


def test_falcons_bias_and_alibi():
    model = read(FALCON, bias=True, alibi=True, parallel_attn=False, multi_query=False)
    assert model.positions == "alibi"
    assert model.rotary_dim == 0
    biases = [n for n in model.block_shapes() if n.endswith("bias") and "norm" not in n]
    assert len(biases) == 6
    assert "head.output.bias" not in model.head_shapes()


def test_gemma_norms():
    one, two, three = (
        [
            n
            for n in read(LLAMA, model_type=kind, num_key_value_heads=2).block_shapes()
            if "norm" in n
        ]
        for kind in ("gemma", "gemma2", "gemma3_text")
    )
    assert one == ["attention_norm.weight", "mlp_norm.weight"]
    assert two == [
        "attention_norm.weight", "attention_post_norm.weight", "mlp_norm.weight",
        "mlp_post_norm.weight",
    ]  # fmt: skip
    assert set(three) - set(two) == {"attention.q_norm.weight", "attention.k_norm.weight"}


def test_phi_by_hand():
    model = read(LLAMA, model_type="phi", partial_rotary_factor=0.5, qk_layernorm=True)
    assert model.rotary_dim == 8
    assert model.head_shapes() == {
        "head.norm.weight": (64,), "head.norm.bias": (64,), "head.output.weight": (100, 64),
        "head.output.bias": (100,),
    }  # fmt: skip
    assert "mlp_norm.weight" not in model.block_shapes()
    assert model.block_shapes()["attention.q_norm.bias"] == (16,)


def test_biases_of_a_llama():
    assert not any("bias" in n for n in read(LLAMA).block_shapes())
    biased = read(LLAMA, attention_bias=True, mlp_bias=True).block_shapes()
    assert sum(n.endswith(".bias") for n in biased) == 7


# What a config leaves out, and other spellings.


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


GEMMA3_4B = dict(
    model_type="gemma3",
    architectures=["Gemma3ForConditionalGeneration"],
    mm_tokens_per_image=256,
    text_config=dict(
        model_type="gemma3_text", hidden_size=2560, intermediate_size=10240, num_hidden_layers=34,
        rope_scaling={"factor": 8.0, "rope_type": "linear"}, sliding_window=1024,
    ),
    vision_config=dict(hidden_size=1152, num_hidden_layers=27, model_type="siglip_vision_model"),
)  # fmt: skip


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


# Where it comes from, and what it is called.


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


# What only the calculator can take, and models given by their sizes.


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("Llama-3.2-3B", None),
        ("Mistral-Nemo", None),
        ("Qwen3-1.7B", None),
        ("gemma-7b", None),
        ("Phi-3-medium", None),
        ("gpt2-large", None),
        ("Mixtral-8x7B", "mixture of experts"),
        ("DeepSeek-V3", "mixture of experts and no latent attention"),
        ("Gemma-3-270M", "norms after attention and MLP"),
        ("Phi-4-mini", "partly rotated heads"),
        ("Phi-2", "parallel attention and MLP and no partly rotated heads and no bias on the "
         "output head"),
        ("Falcon-7B", "parallel attention and MLP"),
        ("falcon-rw-1b", "ALiBi positions"),
    ],
)  # fmt: skip
def test_why_not_trainable(name, parts):
    model = pl.Model.from_config(PUBLIC[name][0], name)
    if parts is None:
        assert model.why_not_trainable is None
    else:
        assert model.why_not_trainable == (
            f"{name} can be predicted but not trained: parallab's own decoder has no {parts}. "
            "Choose a model without, such as llama-3.1-8b or mini."
        )


def test_every_preset_is_trainable():
    assert [n for n in pl.spec.PRESETS if pl.Model(n).why_not_trainable] == []


def test_a_report_saved_before_families_were_read_still_loads():
    # What this Model wrote when it had these fields only.
    data = dict(
        name="qwen3-0.6b", layers=28, hidden=1024, heads=16, kv_heads=8, head_dim=128, ffn=3072,
        vocab=151936, context=40960, mlp="gated", activation="silu", norm="rms", norm_eps=1e-6,
        positions="rope", rope_theta=1e6, qk_norm=True, qkv_bias=False, out_bias=False,
        mlp_bias=False, tied=True, parameters=596_049_920,
    )  # fmt: skip
    model = pl.Model.from_dict(data)
    assert model == pl.Model("qwen3-0.6b")
    assert (model.value_dim, model.rotary_dim, model.block_norms) == (128, 128, 2)


def test_a_mixture_by_its_sizes():
    model = pl.Model("mine", **MIXTURE, dense_layers=[2, 0, 2])
    assert model.dense_layers == (0, 2)
    assert model.block_kinds() == {0: 2, 1: 2}
    experts = 8 * 3 * 32 * 16
    assert count(model.block_shapes(1)) == 4 * 32 * 32 + 2 * 32 + 8 * 32 + experts
    assert model.parameters - model.active_parameters == 2 * experts * 6 // 8
    assert str(model) == "mine (0.1 M parameters, 0.0 M active)"
    assert hash(model) == hash(pl.Model.from_dict(model.to_dict()))
