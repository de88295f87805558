"""Hugging Face config.json -> Model: the language model that a config describes.

Where a file leaves a field out, its class's default stands for it (`parallab.models.families`),
except for the sizes that every file of its own states: where one of them is missing, it is named.
Only a config inside another, `text_config`, is written as what differs from its class.

Counted is the decoder with its embedding and head, as transformers builds it: no vision tower, no
multi-token-prediction layers (DeepSeek-V3), no buffers (rotary tables, router corrections). What
does not change a size is not read: sliding windows, scaling of rotary positions, soft caps.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from parallab.errors import ModelError
from parallab.models.families import FAMILIES, NAMES, Family, Fields
from parallab.models.spec import Model

# The family of a text_config that does not say it.
_TEXT_FAMILY = {"gemma3": "gemma3_text", "llava": "llama"}
_LARGEST_FILE = 16 * 2**20


def model(config: Mapping[str, Any] | str | PathLike[str], name: str | None = None) -> Model:
    """The model of a config: a file, a folder with a config.json, JSON text, or a dict.

    >>> model({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12,
    ...        "n_positions": 1024, "vocab_size": 50257}).parameters
    124439808

    Raises:
        ModelError: no config, a family that is not known, or a value that cannot be.
    """
    values, place = _load(config)
    part, whole = _language_part(values)
    kind = part.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        where = "config" if whole else "text_config"
        says = "no model_type" if kind is None else f"model_type={reprlib.repr(kind)}"
        raise ModelError(
            f"This {where} has {says}; parallab reads the families {', '.join(FAMILIES)}."
        )
    family = FAMILIES[kind]
    if part.get("per_layer_config"):
        raise ModelError(
            f"This {kind} config has a per_layer_config: layers of different sizes cannot be read."
        )
    try:
        read = Model("config", **family.read(Fields(part, kind, family, whole)))
    except ModelError as error:
        raise ModelError(_in_its_words(str(error), family)) from None
    # Named only now: a preset's name would bring the preset's sizes along.
    stated = values.get("_name_or_path")
    own = stated.rstrip("/").rpartition("/")[2] if isinstance(stated, str) else ""
    return Model.from_dict({**read.to_dict(), "name": name or own or place or kind})


def _in_its_words(message: str, family: Family) -> str:
    """A Model's complaint with the config's names for the sizes."""
    names = {**NAMES, **family.names}
    return re.sub(rf"\b({'|'.join(names)})(?==| may| as)", lambda found: names[found[1]], message)


def _load(config: object) -> tuple[Mapping[str, Any], str]:
    """The parsed config, and the name that its place suggests."""
    if isinstance(config, Mapping):
        return config, ""
    if isinstance(config, str) and config.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        return _parse(config.lstrip("\ufeff"), "This text"), ""
    if not isinstance(config, str | PathLike) or not str(config).strip():
        raise ModelError(
            f"{reprlib.repr(config)} is no config: give a config.json's path, text or dict."
        )
    try:
        path = Path(config).expanduser()
        path = path / "config.json" if path.is_dir() else path
        if not path.is_file():
            raise ModelError(f"There is no file {path}: give the path of a config.json.")
        if path.stat().st_size > _LARGEST_FILE:
            raise ModelError(f"{path} is larger than a config.json: is it one?")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        why = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        shown = str(config) if len(str(config)) <= 200 else reprlib.repr(str(config))
        raise ModelError(f"{shown} cannot be read as a config: {why}.") from None
    place = path.parent.name if path.name == "config.json" else path.stem
    return _parse(text, str(path)), place


def _parse(text: str, source: str) -> Mapping[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{source} is not JSON: {error}.") from None
    if not isinstance(values, dict):
        raise ModelError(f"{source} holds {reprlib.repr(values)}, not a config's names and values.")
    return values


def _language_part(values: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """The config of the language model, and whether it is the whole config."""
    kind, inner = values.get("model_type"), values.get("text_config")
    if inner is None or (isinstance(kind, str) and kind in FAMILIES):
        return values, True
    if not isinstance(inner, Mapping):
        raise ModelError(
            f"text_config={reprlib.repr(inner)} must hold a config's names and values."
        )
    outer = {"tie_word_embeddings": values.get("tie_word_embeddings")}
    if isinstance(kind, str):
        outer["model_type"] = _TEXT_FAMILY.get(kind)
    return {**{k: v for k, v in outer.items() if v is not None}, **inner}, False
