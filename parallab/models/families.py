"""The families of language models that have a Hugging Face config, one row each.

A row says how the family's sizes are read, and the defaults of its config class in transformers
(5.24), which stand for what a file leaves out. To add a family, add its row, and a function where
no other family's reads it.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from parallab.errors import ModelError
from parallab.models.spec import LIMITS, check_number, check_size

Sizes = dict[str, Any]

# Model's field -> the usual name in a config.
NAMES = {
    "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads", "head_dim": "head_dim", "ffn": "intermediate_size",
    "vocab": "vocab_size", "context": "max_position_embeddings", "norm_eps": "rms_norm_eps",
    "activation": "hidden_act", "tied": "tie_word_embeddings", "value_dim": "v_head_dim",
    "q_rank": "q_lora_rank", "kv_rank": "kv_lora_rank", "experts": "num_experts",
    "experts_per_token": "num_experts_per_tok", "expert_ffn": "moe_intermediate_size",
}  # fmt: skip
# What a whole config states, whatever its class's default is.
_STATED = {
    "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size",
    "n_layer", "n_embd", "n_head", "n_positions", "num_experts", "num_local_experts",
    "n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size",
    "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
}  # fmt: skip
# What may be a list with one value for each layer; a Model has only one for all.
_PER_LAYER = {"heads", "kv_heads", "head_dim", "ffn"}
_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu", "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """How one `model_type` is read.

    Attributes:
        read: from a config to a Model's sizes.
        defaults: those of its config class. A field that is not there has no effect.
        names: Model's field -> the config's name, where it is not the usual one.
        spellings: the config's name -> another one for it.
        omitted: what whole configs of this family leave out although others state it.
    """

    read: Callable[[Fields], Sizes]
    defaults: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)
    spellings: Mapping[str, str] = field(default_factory=dict)
    omitted: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Fields:
    """A config's fields, checked; each error names the field and its value.

    Fields are asked for by Model's name or by their own.
    """

    values: Mapping[str, Any]
    kind: str
    family: Family
    whole: bool

    def get(self, asked: str) -> tuple[str, Any]:
        """A field's name in this config and its value there, or its class's default."""
        name = {**NAMES, **self.family.names}.get(asked, asked)
        spellings = (name, self.family.spellings.get(name, name))
        spelled = [s for s in spellings if s in self.values]
        for spelling in spelled:
            if self.values[spelling] is not None:
                return spelling, self.values[spelling]
        if spelled:
            return spelled[0], None
        if self.whole and name in _STATED - self.family.omitted:
            raise self.missing(name)
        return name, self.family.defaults.get(name)

    def missing(self, name: str) -> ModelError:
        return ModelError(f"A {self.kind} config needs {name}, and this one has none.")

    def size(self, asked: str, *, null: int | None = None, least: int = 1) -> int:
        """A size; `null` is what an explicit null, or a default of None, stands for."""
        name, value = self.get(asked)
        if value is None:
            if null is None:
                raise self.missing(name)
            return null
        per_layer = asked in _PER_LAYER and isinstance(value, list)
        if per_layer and len(value) == self.get("layers")[1]:
            if any(each != value[0] for each in value):
                raise ModelError(
                    f"{name}={reprlib.repr(value)} differs between layers, which cannot be read."
                )
            value = value[0]
        return check_size(name, value, LIMITS.get(asked, max(LIMITS.values())), least)

    def flag(self, asked: str) -> bool:
        name, value = self.get(asked)
        if self.family.defaults.get(name) is None or value is None:
            return False
        if not isinstance(value, bool):
            raise ModelError(f"{name}={reprlib.repr(value)} must be true or false.")
        return value

    def number(self, asked: str) -> float:
        return check_number(*self.get(asked))

    def activation(self) -> str:
        name, value = self.get("activation")
        if not isinstance(value, str) or value not in _ACTIVATIONS:
            raise ModelError(
                f"{name}={reprlib.repr(value)} is not one of {', '.join(_ACTIVATIONS)}."
            )
        return _ACTIVATIONS[value]

    def rope(self, name: str) -> float:
        """A number of the rotary positions: in their own dict (transformers 5), or beside it.

        Where full and sliding attention have their own, full attention's.
        """
        for place in ("rope_parameters", "rope_scaling"):
            group_name, group = self._rope_group(place)
            if group.get(name) is not None:
                return check_number(f"{group_name}.{name}", group[name])
        return self.number(name)

    def _rope_group(self, name: str) -> tuple[str, Mapping[str, Any]]:
        group = self.values.get(name)
        if isinstance(group, Mapping) and "full_attention" in group:
            name, group = f"{name}.full_attention", group["full_attention"]
        if group is not None and not isinstance(group, Mapping):
            raise ModelError(f"{name}={reprlib.repr(group)} must hold names and values.")
        return name, group or {}


def _basics(c: Fields) -> Sizes:
    return dict(
        {size: c.size(size) for size in ("layers", "hidden", "heads", "vocab", "context")},
        activation=c.activation(), norm_eps=c.number("norm_eps"), tied=c.flag("tied"),
    )  # fmt: skip


def _llama(c: Fields) -> Sizes:
    basics, bias = _basics(c), c.flag("attention_bias")
    # Where the class has no width of its own, it is hidden / heads: no size for Model.
    null = 0 if c.family.defaults["head_dim"] is None else None
    return dict(
        basics, ffn=c.size("ffn"), kv_heads=c.size("kv_heads", null=basics["heads"]),
        head_dim=c.size("head_dim", null=null) or None, rope_theta=c.rope("rope_theta"),
        qkv_bias=bias, out_bias=bias, mlp_bias=c.flag("mlp_bias"),
    )  # fmt: skip


def _qwen2(c: Fields) -> Sizes:
    return dict(_llama(c), qkv_bias=True)


def _qwen3(c: Fields) -> Sizes:
    return dict(_llama(c), qk_norm=True)


def _gemma2(c: Fields) -> Sizes:
    return dict(_llama(c), block_norms=4)


def _gemma3(c: Fields) -> Sizes:
    return dict(_gemma2(c), qk_norm=True)


def _phi3(c: Fields) -> Sizes:
    sizes, share = _llama(c), c.rope("partial_rotary_factor")
    if not sizes["head_dim"] and sizes["hidden"] % sizes["heads"]:
        return sizes  # Model says why not.
    width = sizes["head_dim"] or sizes["hidden"] // sizes["heads"]
    rotary = int(width * share)
    if share > 1 or rotary % 2 or not rotary:
        raise ModelError(
            f"partial_rotary_factor={share:g} turns {rotary} of the {width} numbers of a head; "
            "it must be an even number of them, from 2 to all."
        )
    return dict(sizes, rotary_dim=rotary)


def _phi(c: Fields) -> Sizes:
    return dict(
        _phi3(c), mlp="plain", norm="layer", parallel=True, block_norms=1, qkv_bias=True,
        out_bias=True, mlp_bias=True, head_bias=True, qk_norm=c.flag("qk_layernorm"),
    )  # fmt: skip


def _gpt2(c: Fields) -> Sizes:
    if c.flag("add_cross_attention"):
        raise ModelError("add_cross_attention=True makes this gpt2 a decoder of something else.")
    basics = _basics(c)
    return dict(
        basics, ffn=c.size("ffn", null=4 * basics["hidden"]), mlp="plain", norm="layer",
        positions="learned", qkv_bias=True, out_bias=True, mlp_bias=True,
    )  # fmt: skip


def _falcon(c: Fields) -> Sizes:
    basics, bias = _basics(c), c.flag("bias")
    new, parallel = c.flag("new_decoder_architecture"), c.flag("parallel_attn")
    if new:
        kv_heads = c.size("kv_heads", null=basics["heads"])
    else:
        kv_heads = 1 if c.flag("multi_query") else basics["heads"]
    norms = c.size("num_ln_in_parallel_attn", null=2 if new else 1)
    return dict(
        basics, ffn=c.size("ffn", null=4 * basics["hidden"]), kv_heads=kv_heads, mlp="plain",
        norm="layer", positions="alibi" if c.flag("alibi") else "rope",
        rope_theta=c.rope("rope_theta"), parallel=new or parallel,
        block_norms=2 if norms == 2 or not parallel else 1,
        qkv_bias=bias, out_bias=bias, mlp_bias=bias,
    )  # fmt: skip


def _experts(c: Fields) -> Sizes:
    return {size: c.size(size) for size in ("experts", "experts_per_token", "expert_ffn")}


def _mixtral(c: Fields) -> Sizes:
    return {**_llama(c), **_experts(c)}


def _qwen3_moe(c: Fields) -> Sizes:
    sizes = {**_qwen3(c), **_experts(c)}
    every, (name, plain) = c.size("decoder_sparse_step"), c.get("mlp_only_layers")
    plain = [] if plain is None else plain
    if not isinstance(plain, list):
        raise ModelError(f"{name}={reprlib.repr(plain)} must be a list of layers.")
    plain = {check_size(f"A layer of {name}", i, sizes["layers"] - 1, 0) for i in plain}
    dense = [i for i in range(sizes["layers"]) if i in plain or (i + 1) % every]
    return dict(sizes, dense_layers=dense)


def _deepseek(c: Fields) -> Sizes:
    """Latent attention, and leading layers with a plain MLP.

    `moe_layer_freq` is read as DeepSeek's own modeling code does; transformers takes it as 1.
    """
    sizes = {**_llama(c), **_experts(c)}
    first, every = c.size("first_k_dense_replace", least=0), c.size("moe_layer_freq")
    rotary = c.size("qk_rope_head_dim")
    return dict(
        sizes, kv_heads=sizes["heads"], head_dim=c.size("qk_nope_head_dim") + rotary,
        rotary_dim=rotary, value_dim=c.size("value_dim"), kv_rank=c.size("kv_rank"),
        q_rank=c.size("q_rank", null=0),
        shared_ffn=c.size("n_shared_experts", null=0, least=0) * sizes["expert_ffn"],
        dense_layers=[i for i in range(sizes["layers"]) if i < first or i % every],
    )  # fmt: skip


def _class(
    hidden: int, ffn: int, layers: int, heads: int, kv_heads: int | None, vocab: int, context: int,
    **others: Any,
) -> dict[str, Any]:  # fmt: skip
    """A config class's defaults; those that most classes share need not be given."""
    return {
        "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocab,
        "max_position_embeddings": context, "head_dim": None, "rms_norm_eps": 1e-6,
        "rope_theta": 1e4, "hidden_act": "silu", "tie_word_embeddings": False, **others,
    }  # fmt: skip


_GEMMA: dict[str, Any] = dict(
    head_dim=256, hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True,
    attention_bias=False,
)  # fmt: skip
_GEMMA_NAMES: dict[str, Any] = dict(
    names={"activation": "hidden_activation"}, spellings={"hidden_activation": "hidden_act"}
)
_GPT2: dict[str, Any] = dict(
    n_embd=768, n_layer=12, n_head=12, n_positions=1024, vocab_size=50257, n_inner=None,
    activation_function="gelu_new", layer_norm_epsilon=1e-5, tie_word_embeddings=True,
    add_cross_attention=False,
)  # fmt: skip
_FALCON: dict[str, Any] = dict(
    hidden_size=4544, num_hidden_layers=32, num_attention_heads=71, vocab_size=65024,
    max_position_embeddings=2048, num_kv_heads=None, ffn_hidden_size=None, activation="gelu",
    layer_norm_epsilon=1e-5, rope_theta=1e4, tie_word_embeddings=True, alibi=False, bias=False,
    multi_query=True, parallel_attn=True, new_decoder_architecture=False,
    num_ln_in_parallel_attn=None,
)  # fmt: skip
_DEEPSEEK: dict[str, Any] = dict(
    kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
    attention_bias=False, moe_layer_freq=1,
)  # fmt: skip

# fmt: off
FAMILIES: dict[str, Family] = {
    # LlamaConfig
    "llama": Family(_llama, _class(4096, 11008, 32, 32, None, 32000, 2048,
                                   attention_bias=False, mlp_bias=False)),
    # MistralConfig
    "mistral": Family(_llama, _class(4096, 14336, 32, 32, 8, 32000, 131072)),
    # Qwen2Config, Qwen3Config
    "qwen2": Family(_qwen2, _class(4096, 22016, 32, 32, 32, 151936, 32768)),
    "qwen3": Family(_qwen3, _class(4096, 22016, 32, 32, 32, 151936, 32768,
                                   head_dim=128, attention_bias=False)),
    # GemmaConfig, Gemma2Config, Gemma3TextConfig
    "gemma": Family(_llama, _class(3072, 24576, 28, 16, 16, 256000, 8192, **_GEMMA),
                    **_GEMMA_NAMES),
    "gemma2": Family(_gemma2, _class(2304, 9216, 26, 8, 4, 256000, 8192, **_GEMMA),
                     **_GEMMA_NAMES),
    "gemma3_text": Family(_gemma3, _class(2304, 9216, 26, 8, 4, 262208, 131072,
                                          **{**_GEMMA, "rope_theta": 1e6}),
                          omitted=frozenset({"num_attention_heads", "vocab_size"}),
                          **_GEMMA_NAMES),
    # PhiConfig, Phi3Config
    "phi": Family(_phi, _class(2048, 8192, 24, 32, None, 51200, 2048, hidden_act="gelu_new",
                               layer_norm_eps=1e-5, partial_rotary_factor=0.5, qk_layernorm=False),
                  {"norm_eps": "layer_norm_eps"}),
    "phi3": Family(_phi3, _class(3072, 8192, 32, 32, None, 32064, 4096, rms_norm_eps=1e-5,
                                 partial_rotary_factor=1.0)),
    # GPT2Config with its attribute_map, FalconConfig with its old name for hidden_size
    "gpt2": Family(_gpt2, _GPT2,
                   {"hidden": "n_embd", "layers": "n_layer", "heads": "n_head", "ffn": "n_inner",
                    "context": "n_positions", "activation": "activation_function",
                    "norm_eps": "layer_norm_epsilon"},
                   {"n_embd": "hidden_size", "n_layer": "num_hidden_layers",
                    "n_head": "num_attention_heads", "n_positions": "max_position_embeddings"}),
    "falcon": Family(_falcon, _FALCON,
                     {"kv_heads": "num_kv_heads", "ffn": "ffn_hidden_size",
                      "activation": "activation", "norm_eps": "layer_norm_epsilon"},
                     {"hidden_size": "n_embed"}),
    # MixtralConfig, Qwen3MoeConfig: each also writes the other's name for the experts
    "mixtral": Family(_mixtral, _class(4096, 14336, 32, 32, 8, 32000, 131072, rms_norm_eps=1e-5,
                                       rope_theta=1e6, num_local_experts=8, num_experts_per_tok=2),
                      {"experts": "num_local_experts", "expert_ffn": "intermediate_size"},
                      {"num_local_experts": "num_experts"}),
    "qwen3_moe": Family(_qwen3_moe, _class(2048, 6144, 24, 32, 4, 151936, 32768, num_experts=128,
                                           num_experts_per_tok=8, moe_intermediate_size=768,
                                           decoder_sparse_step=1, attention_bias=False),
                        spellings={"num_experts": "num_local_experts"}),
    # DeepseekV2Config, DeepseekV3Config
    "deepseek_v2": Family(_deepseek, _class(4096, 11008, 32, 32, None, 102400, 2048, **_DEEPSEEK,
                                            n_routed_experts=64, n_shared_experts=2,
                                            moe_intermediate_size=1407, first_k_dense_replace=0,
                                            mlp_bias=False),
                          {"experts": "n_routed_experts", "rotary_dim": "qk_rope_head_dim"}),
    "deepseek_v3": Family(_deepseek, _class(7168, 18432, 61, 128, 128, 129280, 4096, **_DEEPSEEK,
                                            n_routed_experts=256, n_shared_experts=1,
                                            num_experts_per_tok=8, moe_intermediate_size=2048,
                                            first_k_dense_replace=3),
                          {"experts": "n_routed_experts", "rotary_dim": "qk_rope_head_dim"}),
}
# fmt: on
