"""Families whose blocks differ from a llama's, tensor by tensor."""

import pytest

from tests.models.rows import DEEPSEEK, FALCON, LLAMA, QWEN3_MOE, read, without


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
