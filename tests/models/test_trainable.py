"""What only the calculator can take, and models given by their sizes."""

import pytest

import parallab as pl
from parallab.models.presets import PRESETS
from parallab.models.shapes import count
from tests.models.rows import MIXTURE, PUBLIC


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
    assert [n for n in PRESETS if pl.Model(n).why_not_trainable] == []


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
