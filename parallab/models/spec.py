"""What is trained: the sizes of a decoder-only transformer, and its exact parameter count.

A `Model` is numbers only, its own, a preset's or a Hugging Face config.json's
(`parallab.models.configs`). `parallab.models.shapes` lists its tensors, and
`parallab.rank.decoder` builds the module from it, tensor for tensor. One block is

    x = x + attention(norm(x))          q, k, v, out projections; fewer key/value heads = GQA
    x = x + mlp(norm(x))                gated: down(act(gate(x)) * up(x));  plain: down(act(up(x)))

between a token embedding (plus learned positions, where the family has them) and a final norm with
the output head, which may share the embedding's weight. What else families have (experts, latent
attention, parallel blocks, more norms) is counted, and not trained: `Model.why_not_trainable`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any, Literal

from parallab import html
from parallab.errors import ModelError
from parallab.models import shapes
from parallab.models.presets import PRESETS
from parallab.models.shapes import Shape, Shapes, count

__all__ = ["PRESETS", "Model", "Shape", "count"]

# Nothing that people train comes near these; a typo does.
LIMITS = {
    "layers": 10_000, "hidden": 1_000_000, "heads": 10_000, "kv_heads": 10_000,
    "head_dim": 100_000, "ffn": 10_000_000, "vocab": 100_000_000, "context": 100_000_000,
    "value_dim": 100_000, "block_norms": 4,
}  # fmt: skip
# Parts that a model need not have: 0 is none.
_OPTIONAL_LIMITS = {
    "rotary_dim": 100_000, "q_rank": 1_000_000, "kv_rank": 1_000_000, "experts": 100_000,
    "experts_per_token": 100_000, "expert_ffn": 10_000_000, "shared_ffn": 10_000_000,
}  # fmt: skip
_CHOICES: dict[str, tuple[Any, ...]] = {
    "mlp": ("gated", "plain"), "activation": ("silu", "gelu"), "norm": ("rms", "layer"),
    "positions": ("rope", "learned", "alibi"), "block_norms": (1, 2, 4),
}  # fmt: skip
_FLAGS = ("qk_norm", "qkv_bias", "out_bias", "mlp_bias", "tied", "parallel", "head_bias")


@dataclass(frozen=True, init=False)
class Model(html.Shown):
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
        positions: "rope" turns the first `rotary_dim` numbers of each head's query and key, all
            unless given; "learned" adds an embedding; "alibi" biases the scores.
        value_dim: width of one head's value, head_dim unless given.
        block_norms: 2 where one precedes attention and one the MLP, 4 where one also follows each,
            1 where a parallel block's single norm feeds both.
        parallel: attention and MLP read the same input, and their outputs are added together.
        kv_rank, q_rank: widths that latent attention (MLA, arXiv:2405.04434) squeezes keys and
            values, and queries, into; 0 for none.
        experts, experts_per_token, expert_ffn: a mixture of experts: how many a layer has, how
            many a token is sent to, and the inner width of one; 0 for a dense model.
        shared_ffn: inner width of the experts that every token meets, together.
        dense_layers: layers of a mixture that have a plain MLP of width `ffn`.

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
    positions: Literal["rope", "learned", "alibi"]
    rope_theta: float
    qk_norm: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    tied: bool
    value_dim: int
    rotary_dim: int
    block_norms: Literal[1, 2, 4]
    parallel: bool
    head_bias: bool
    kv_rank: int
    q_rank: int
    experts: int
    experts_per_token: int
    expert_ffn: int
    shared_ffn: int
    dense_layers: tuple[int, ...]

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
            rope_theta=10000.0, block_norms=2, dense_layers=(),
            **dict.fromkeys(_FLAGS, False), **dict.fromkeys(_OPTIONAL_LIMITS, 0),
        )  # fmt: skip
        merged = {**defaults, **merged}
        merged.setdefault("value_dim", merged["head_dim"])
        rotated = merged["rotary_dim"] or merged["head_dim"]
        merged["rotary_dim"] = rotated if merged["positions"] == "rope" else 0
        merged["dense_layers"] = _indices(merged["dense_layers"], merged["layers"])
        for field in self.__dataclass_fields__:
            object.__setattr__(self, field, name if field == "name" else merged[field])
        self._check()
        self._check_attention()
        self._check_experts()

    def _check(self) -> None:
        for field, allowed in _CHOICES.items():
            if getattr(self, field) not in allowed:
                raise ModelError(
                    f"{field}={getattr(self, field)!r} is not one of "
                    f"{', '.join(map(str, allowed))}."
                )
        for field in ("norm_eps", "rope_theta"):
            check_number(field, getattr(self, field))
        for field in _FLAGS:
            if not isinstance(getattr(self, field), bool):
                raise ModelError(f"{field}={getattr(self, field)!r} must be True or False.")
        if self.block_norms == 1 and not self.parallel:
            raise ModelError(
                "block_norms=1 is for parallel=True, where one norm feeds attention and MLP; "
                "choose block_norms=2."
            )

    def _check_attention(self) -> None:
        if self.heads % self.kv_heads:
            valid = [k for k in range(1, self.heads + 1) if self.heads % k == 0]
            raise ModelError(
                f"heads={self.heads} cannot share kv_heads={self.kv_heads} evenly; "
                f"kv_heads may be {', '.join(map(str, valid[:12]))}."
            )
        field = "head_dim" if self.rotary_dim == self.head_dim else "rotary_dim"
        if self.rotary_dim % 2:
            raise ModelError(
                f"Rotary positions turn pairs of numbers, and {field}={self.rotary_dim} is odd; "
                f"choose an even {field}, or positions='learned'."
            )
        if self.rotary_dim > self.head_dim:
            raise ModelError(
                f"rotary_dim={self.rotary_dim} is more than the head_dim={self.head_dim} numbers "
                "of a head."
            )
        if self.q_rank and not self.kv_rank:
            raise ModelError(f"q_rank={self.q_rank} is latent attention's: give kv_rank as well.")
        if self.kv_rank and (self.qk_norm or self.kv_heads != self.heads):
            raise ModelError(
                f"Latent attention (kv_rank={self.kv_rank}) has keys and values for each of its "
                f"heads={self.heads} and no qk_norm: leave kv_heads and qk_norm out."
            )

    def _check_experts(self) -> None:
        parts = ("experts_per_token", "expert_ffn", "shared_ffn", "dense_layers")
        if not self.experts:
            for field in parts:
                if getattr(self, field):
                    raise ModelError(
                        f"{field}={getattr(self, field)!r} is for a mixture of experts, and "
                        "experts=0: give experts as well."
                    )
            return
        for field in parts[:2]:
            if not getattr(self, field):
                raise ModelError(f"A mixture of experts={self.experts} needs {field} as well.")
        if self.experts_per_token > self.experts:
            raise ModelError(
                f"experts_per_token={self.experts_per_token} is more than experts={self.experts}."
            )

    @property
    def why_not_trainable(self) -> str | None:
        """Why no real step can run with this model, None where one can."""
        rotated = self.positions != "rope" or self.rotary_dim == self.head_dim
        lacking = {
            "mixture of experts": self.experts > 0,
            "latent attention": self.kv_rank > 0,
            "parallel attention and MLP": self.parallel,
            "norms after attention and MLP": self.block_norms == 4,
            "ALiBi positions": self.positions == "alibi",
            "partly rotated heads": not self.kv_rank and not rotated,
            "values narrower or wider than keys": not self.kv_rank
            and self.value_dim != self.head_dim,
            "bias on the output head": self.head_bias,
        }
        found = [part for part, has in lacking.items() if has]
        if not found:
            return None
        return (
            f"{self.name} can be predicted but not trained: parallab's own decoder has no "
            f"{' and no '.join(found)}. Choose a model without, such as llama-3.1-8b or mini."
        )

    def is_sparse(self, layer: int) -> bool:
        """Whether a block's MLP is a mixture of experts."""
        return self.experts > 0 and layer not in self.dense_layers

    def block_kinds(self) -> dict[int, int]:
        """The blocks that differ in shape: the first layer of each kind -> layers of that kind."""
        kinds: dict[bool, list[int]] = {}
        for layer in range(self.layers):
            kinds.setdefault(self.is_sparse(layer), []).append(layer)
        return {layers[0]: len(layers) for layers in kinds.values()}

    def units(self) -> dict[str, Shapes]:
        """Every parameter's name and shape, in the units that data-parallel strategies work by.

        Units are `embedding`, `blocks.0` … `blocks.N`, and `head` (final norm and output
        projection). Names are the module's own; a tied head has no weight of its own.
        """
        units = {"embedding": self.embedding_shapes()}
        for i in range(self.layers):
            prefix = f"blocks.{i}."
            units[f"blocks.{i}"] = {prefix + n: s for n, s in self.block_shapes(i).items()}
        units["head"] = self.head_shapes()
        return units

    def embedding_shapes(self) -> Shapes:
        """Parameters of the embedding: name -> shape."""
        return shapes.embedding(self)

    def block_shapes(self, layer: int = 0) -> Shapes:
        """Parameters of one block: name within the block -> shape."""
        return shapes.block(self, layer)

    def head_shapes(self) -> Shapes:
        """Parameters of the final norm and the output projection: name -> shape."""
        return shapes.head(self)

    def shape(self, name: str) -> Shape:
        """The shape of one parameter of the whole model, by its name in `units`."""
        kind, _, rest = name.partition(".")
        if kind == "blocks":
            layer, _, name = rest.partition(".")
            return self.block_shapes(int(layer))[name]
        return {**self.embedding_shapes(), **self.head_shapes()}[name]

    @property
    def parameters(self) -> int:
        """Unique parameters: a tied weight counts once."""
        ends = count(self.embedding_shapes()) + count(self.head_shapes())
        return ends + sum(n * count(self.block_shapes(i)) for i, n in self.block_kinds().items())

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: all but the experts that it is not sent to."""
        idle = sum(n * shapes.idle(self, i) for i, n in self.block_kinds().items())
        return self.parameters - idle

    def to_dict(self) -> dict[str, Any]:
        """The sizes and the parameter count, as a Report stores them."""
        lists = {"dense_layers": list(self.dense_layers)}
        return {**asdict(self), **lists, "parameters": self.parameters}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Model:
        """The inverse of `to_dict`."""
        sizes = {k: v for k, v in data.items() if k in cls.__dataclass_fields__ and k != "name"}
        return cls(str(data.get("name", "unnamed")), **sizes)

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any] | str | PathLike[str], name: str | None = None
    ) -> Model:
        """The language model that a Hugging Face config.json describes.

        Args:
            config: a file, a folder that holds a config.json, the JSON text, or the parsed dict.
            name: what to call it; else what the config or its folder says, else its family.

        Raises:
            ModelError: no config, a family that is not known, or a value that cannot be.
        """
        from parallab.models import configs

        return configs.model(config, name)

    def __repr__(self) -> str:
        """What makes this model again: a preset's name, and the sizes that differ from it."""
        needed = {f: getattr(self, f) for f in ("layers", "hidden", "heads", "head_dim", "ffn",
                                                "vocab")}  # fmt: skip
        sizes = {} if self.name in PRESETS else needed
        usual = Model(self.name, **sizes).to_dict()
        own = self.to_dict()
        changed = {f for f in self.__dataclass_fields__ if own[f] != usual[f]}
        if changed & {"hidden", "heads", "head_dim"}:  # which others would follow
            changed |= {"kv_heads", "head_dim", "value_dim", "rotary_dim"}
        sizes |= {f: own[f] for f in self.__dataclass_fields__ if f in changed}
        return f"Model({', '.join([repr(self.name), *(f'{f}={v!r}' for f, v in sizes.items())])})"

    def __str__(self) -> str:
        active = f", {_in_words(self.active_parameters)} active" if self.experts else ""
        return f"{self.name} ({_in_words(self.parameters)} parameters{active})"


def _in_words(parameters: int) -> str:
    if parameters >= 1e9:
        return f"{parameters / 1e9:,.2f} B"
    return f"{parameters / 1e6:,.1f} M"


def check_size(label: str, value: object, most: int, least: int = 1) -> int:
    """`value` as a size.

    Raises:
        ModelError: it is no whole number from `least` to `most`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ModelError(
            f"{label}={reprlib.repr(value)} is not a size: it must be a whole number from {least} "
            f"to {most:,}."
        )
    return value


def check_number(label: str, value: object) -> float:
    """`value` as a positive number.

    Raises:
        ModelError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
        raise ModelError(f"{label}={reprlib.repr(value)} must be a number above 0.")
    return float(value)


def _check_integers(sizes: Mapping[str, Any]) -> None:
    for limits, least in ((LIMITS, 1), (_OPTIONAL_LIMITS, 0)):
        for field, most in limits.items():
            if field in sizes:
                check_size(field, sizes[field], most, least)


def _indices(layers: object, of: int) -> tuple[int, ...]:
    """Layers in order, from a list or tuple of them."""
    if not isinstance(layers, list | tuple):
        raise ModelError(f"dense_layers={reprlib.repr(layers)} must be a list of layers.")
    for layer in layers:
        check_size("A layer of dense_layers", layer, of - 1, least=0)
    return tuple(sorted(set(layers)))
