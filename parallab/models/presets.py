"""Models by name: our own small ones for real steps, and the well-known ones by their sizes."""

from __future__ import annotations

from typing import Any

# Sizes only. Our own, for real steps on small engines; bytes are their tokens, so vocab is 256
# except in "base", which is GPT-2 with a smaller vocabulary.
_SMALL: dict[str, dict[str, Any]] = {
    "nano": dict(layers=2, hidden=64, heads=4, kv_heads=2, ffn=176, vocab=256, context=1024),
    "micro": dict(layers=4, hidden=128, heads=8, kv_heads=4, ffn=512, vocab=256, context=1024),
    "mini": dict(layers=8, hidden=256, heads=8, kv_heads=4, ffn=512, vocab=256, context=2048),
    "small": dict(layers=8, hidden=512, heads=8, kv_heads=4, ffn=1536, vocab=256, context=2048),
}
_GPT2: dict[str, Any] = dict(
    heads=12, ffn=3072, vocab=50257, context=1024, tied=True, mlp="plain", activation="gelu",
    norm="layer", norm_eps=1e-5, positions="learned", qkv_bias=True, out_bias=True, mlp_bias=True,
)  # fmt: skip
_LLAMA3: dict[str, Any] = dict(
    kv_heads=8, vocab=128256, context=131072, rope_theta=500000.0, norm_eps=1e-5
)
_QWEN2: dict[str, Any] = dict(
    vocab=151936, context=32768, rope_theta=1e6, norm_eps=1e-6, qkv_bias=True
)
_QWEN3: dict[str, Any] = dict(
    kv_heads=8, head_dim=128, vocab=151936, context=40960, rope_theta=1e6, norm_eps=1e-6,
    qk_norm=True,
)  # fmt: skip

# Sizes from each family's published config.json.
# fmt: off
PRESETS: dict[str, dict[str, Any]] = {
    **_SMALL,
    "base": {**_GPT2, "layers": 12, "hidden": 768, "vocab": 32768},
    "gpt2": {**_GPT2, "layers": 12, "hidden": 768},
    "gpt2-medium": {**_GPT2, "layers": 24, "hidden": 1024, "heads": 16, "ffn": 4096},
    "gpt2-xl": {**_GPT2, "layers": 48, "hidden": 1600, "heads": 25, "ffn": 6400},
    "llama-2-7b": dict(
        layers=32, hidden=4096, heads=32, ffn=11008, vocab=32000, context=4096, norm_eps=1e-5
    ),
    "llama-2-70b": dict(
        layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=32000, context=4096,
        norm_eps=1e-5,
    ),
    "llama-3.2-1b": {
        **_LLAMA3, "layers": 16, "hidden": 2048, "heads": 32, "head_dim": 64, "ffn": 8192,
        "tied": True,
    },
    "llama-3.1-8b": {**_LLAMA3, "layers": 32, "hidden": 4096, "heads": 32, "ffn": 14336},
    "llama-3.1-70b": {**_LLAMA3, "layers": 80, "hidden": 8192, "heads": 64, "ffn": 28672},
    "llama-3.1-405b": {**_LLAMA3, "layers": 126, "hidden": 16384, "heads": 128, "ffn": 53248},
    "mistral-7b": dict(
        layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000, context=32768,
        norm_eps=1e-5,
    ),
    "qwen2.5-0.5b": {
        **_QWEN2, "layers": 24, "hidden": 896, "heads": 14, "kv_heads": 2, "ffn": 4864,
        "tied": True,
    },
    "qwen2.5-7b": {
        **_QWEN2, "layers": 28, "hidden": 3584, "heads": 28, "kv_heads": 4, "ffn": 18944,
        "vocab": 152064, "context": 131072,
    },
    "qwen3-0.6b": {
        **_QWEN3, "layers": 28, "hidden": 1024, "heads": 16, "ffn": 3072, "tied": True,
    },
    "qwen3-8b": {**_QWEN3, "layers": 36, "hidden": 4096, "heads": 32, "ffn": 12288},
    "qwen3-32b": {**_QWEN3, "layers": 64, "hidden": 5120, "heads": 64, "ffn": 25600},
}
# fmt: on
