"""What is trained: the sizes of a decoder-only transformer, and its exact parameter count.

A `Model` is numbers only; `parallab.rank.decoder` builds the module from it, tensor for tensor as
`Model.units()` lists them. One block is

    x = x + attention(norm(x))          q, k, v, out projections; fewer key/value heads = GQA
    x = x + mlp(norm(x))                gated: down(act(gate(x)) * up(x));  plain: down(act(up(x)))

between a token embedding (plus learned positions, where the family has them) and a final norm with
the output head, which may share the embedding's weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from parallab.errors import ModelError

Shape = tuple[int, ...]

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

# Nothing that people train comes near these; a typo does.
_LIMITS = {
    "layers": 10_000, "hidden": 1_000_000, "heads": 10_000, "kv_heads": 10_000,
    "head_dim": 100_000, "ffn": 10_000_000, "vocab": 100_000_000, "context": 100_000_000,
}  # fmt: skip


@dataclass(frozen=True, init=False)
class Model:
    """A decoder-only transformer's sizes.

    `Model("mini")` takes a preset (`parallab models` lists them); keywords replace single sizes
    (None: as if not given), and a new name with all sizes describes a model of your own:

    >>> Model("micro").parameters
    1049728
    >>> Model("micro", layers=8).parameters
    2033792
    >>> Model("mine", layers=2, hidden=32, heads=4, ffn=64, vocab=257, tied=True).parameters
    28864

    Attributes:
        layers, hidden, heads, ffn, vocab: as everywhere; `ffn` is the MLP's inner width.
        kv_heads: key/value heads, `heads` unless given; fewer is grouped-query attention.
        head_dim: width of one head, hidden / heads unless given.
        context: the longest sequence in tokens.

    Raises:
        ModelError: an unknown name without sizes, or sizes that no decoder can have.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    mlp: Literal["gated", "plain"]
    activation: Literal["silu", "gelu"]
    norm: Literal["rms", "layer"]
    norm_eps: float
    positions: Literal["rope", "learned"]
    rope_theta: float
    qk_norm: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    tied: bool

    def __init__(self, name: str = "mini", **sizes: Any) -> None:
        if not isinstance(name, str):
            raise ModelError(f"A model's name is a text, not {name!r}.")
        sizes = {field: value for field, value in sizes.items() if value is not None}
        unknown = set(sizes) - set(self.__dataclass_fields__)
        if unknown:
            known = ", ".join(f for f in self.__dataclass_fields__ if f != "name")
            raise ModelError(
                f"A model has no size called {', '.join(sorted(unknown))}. Its sizes are {known}."
            )
        preset = PRESETS.get(name, {})
        merged = {**preset, **sizes}
        missing = [f for f in ("layers", "hidden", "heads", "ffn", "vocab") if f not in merged]
        if missing and not sizes:
            raise ModelError(
                f"There is no model called {name!r}. Choose one of {', '.join(PRESETS)}; "
                "or describe your own: Model('mine', layers=2, hidden=64, heads=4, ffn=128, "
                "vocab=256)."
            )
        if missing:
            raise ModelError(f"The model {name!r} needs {', '.join(missing)} as well.")
        if "heads" in sizes and "kv_heads" not in sizes:
            # A preset's GQA ratio belongs to its own head count.
            merged.pop("kv_heads", None)
        _check_integers(merged)
        if "head_dim" not in merged and merged["hidden"] % merged["heads"]:
            raise ModelError(
                f"hidden={merged['hidden']} does not divide into heads={merged['heads']}: give "
                "head_dim, or a head count that divides it."
            )
        defaults: dict[str, Any] = dict(
            kv_heads=merged["heads"], head_dim=merged["hidden"] // merged["heads"], context=2048,
            mlp="gated", activation="silu", norm="rms", norm_eps=1e-5, positions="rope",
            rope_theta=10000.0, qk_norm=False, qkv_bias=False, out_bias=False, mlp_bias=False,
            tied=False,
        )  # fmt: skip
        for field in self.__dataclass_fields__:
            value = name if field == "name" else merged.get(field, defaults.get(field))
            object.__setattr__(self, field, value)
        self._check()

    def _check(self) -> None:
        choices = {
            "mlp": ("gated", "plain"), "activation": ("silu", "gelu"), "norm": ("rms", "layer"),
            "positions": ("rope", "learned"),
        }  # fmt: skip
        for field, allowed in choices.items():
            if getattr(self, field) not in allowed:
                raise ModelError(
                    f"{field}={getattr(self, field)!r} is not one of {', '.join(allowed)}."
                )
        for field in ("norm_eps", "rope_theta"):
            value = getattr(self, field)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 < value < 1e300
            ):
                raise ModelError(f"{field}={value!r} must be a number above 0.")
        for field in ("qk_norm", "qkv_bias", "out_bias", "mlp_bias", "tied"):
            if not isinstance(getattr(self, field), bool):
                raise ModelError(f"{field}={getattr(self, field)!r} must be True or False.")
        if self.heads % self.kv_heads:
            valid = [k for k in range(1, self.heads + 1) if self.heads % k == 0]
            raise ModelError(
                f"{self.heads} heads cannot share {self.kv_heads} key/value heads evenly; "
                f"kv_heads may be {', '.join(map(str, valid[:12]))}."
            )
        if self.positions == "rope" and self.head_dim % 2:
            raise ModelError(
                f"Rotary positions turn pairs of numbers, and head_dim={self.head_dim} is odd; "
                "choose an even head_dim, or positions='learned'."
            )

    def units(self) -> dict[str, dict[str, Shape]]:
        """Every parameter's name and shape, in the units that data-parallel strategies work by.

        Units are `embedding`, `blocks.0` … `blocks.N`, and `head` (final norm and output
        projection). Names are the module's own; a tied head has no weight of its own.
        """
        units = {"embedding": self.embedding_shapes()}
        for i in range(self.layers):
            prefix = f"blocks.{i}."
            units[f"blocks.{i}"] = {prefix + n: s for n, s in self.block_shapes().items()}
        units["head"] = self.head_shapes()
        return units

    def embedding_shapes(self) -> dict[str, Shape]:
        """Parameters of the embedding: name -> shape."""
        shapes: dict[str, Shape] = {"embedding.tokens.weight": (self.vocab, self.hidden)}
        if self.positions == "learned":
            shapes["embedding.positions.weight"] = (self.context, self.hidden)
        return shapes

    def block_shapes(self) -> dict[str, Shape]:
        """Parameters of one block: name within the block -> shape."""
        h, f, d = self.hidden, self.ffn, self.head_dim
        shapes: dict[str, Shape] = {}

        def linear(name: str, out_features: int, in_features: int, bias: bool) -> None:
            shapes[f"{name}.weight"] = (out_features, in_features)
            if bias:
                shapes[f"{name}.bias"] = (out_features,)

        def norm(name: str, width: int) -> None:
            shapes[f"{name}.weight"] = (width,)
            if self.norm == "layer":
                shapes[f"{name}.bias"] = (width,)

        norm("attention_norm", h)
        linear("attention.q", self.heads * d, h, self.qkv_bias)
        linear("attention.k", self.kv_heads * d, h, self.qkv_bias)
        linear("attention.v", self.kv_heads * d, h, self.qkv_bias)
        linear("attention.out", h, self.heads * d, self.out_bias)
        if self.qk_norm:
            norm("attention.q_norm", d)
            norm("attention.k_norm", d)
        norm("mlp_norm", h)
        if self.mlp == "gated":
            linear("mlp.gate", f, h, self.mlp_bias)
        linear("mlp.up", f, h, self.mlp_bias)
        linear("mlp.down", h, f, self.mlp_bias)
        return shapes

    def head_shapes(self) -> dict[str, Shape]:
        """Parameters of the final norm and the output projection: name -> shape."""
        shapes: dict[str, Shape] = {"head.norm.weight": (self.hidden,)}
        if self.norm == "layer":
            shapes["head.norm.bias"] = (self.hidden,)
        if not self.tied:
            shapes["head.output.weight"] = (self.vocab, self.hidden)
        return shapes

    @property
    def parameters(self) -> int:
        """Unique parameters: a tied weight counts once."""
        ends = count(self.embedding_shapes()) + count(self.head_shapes())
        return ends + self.layers * count(self.block_shapes())

    def to_dict(self) -> dict[str, Any]:
        """The sizes and the parameter count, as a Report stores them."""
        return {**asdict(self), "parameters": self.parameters}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Model:
        """The inverse of `to_dict`."""
        sizes = {k: v for k, v in data.items() if k in cls.__dataclass_fields__ and k != "name"}
        return cls(str(data.get("name", "unnamed")), **sizes)

    def __str__(self) -> str:
        return f"{self.name} ({self.parameters / 1e6:,.1f} M parameters)"


def count(shapes: Mapping[str, Shape]) -> int:
    """Number of elements of all shapes together."""
    return sum(math.prod(shape) for shape in shapes.values())


def _check_integers(sizes: Mapping[str, Any]) -> None:
    for field, limit in _LIMITS.items():
        value = sizes.get(field)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
            raise ModelError(
                f"{field}={value!r} is not a size: it must be a whole number from 1 to {limit:,}."
            )
