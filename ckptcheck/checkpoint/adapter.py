"""PEFT adapters: their LoRA pairs, the vocabulary matrices they carry, and what their config declares.

Format: peft/utils/save_and_load.py, peft/tuners/lora/layer.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import msgspec

from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.tensor import Tensor

VOCABULARY = re.compile(
    r"(^|\.)(embed_tokens|wte|word_embeddings|lm_head|embed_out)(\.modules_to_save(\.\w+)?|\.base_layer)?\.weight$"
)
LORA = re.compile(r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<half>[AB])(\.(?!weight$)[^.]+)?(\.weight)?")
"""A LoRA matrix: ``….q_proj.lora_A.weight``, ``….embed_tokens.lora_embedding_A``, with the adapter's name after it or without."""
SAVED = re.compile(r"(?P<module>.+?)(\.modules_to_save(\.(?!weight$|bias$)[^.]+)?)?\.(?P<part>weight|bias)")
"""A module that the adapter holds as a whole."""
PREFIX = "base_model.model."
"""PEFT's prefix of the base model's names."""


class LoraPair(msgspec.Struct, frozen=True):
    """The two matrices that an adapter adds to one module."""

    module: str
    """The module's name in the base model."""
    down: str
    """Name of lora_A: of shape [rank, inputs], of an embedding [rank, tokens]."""
    up: str
    """Name of lora_B: of shape [outputs, rank], of an embedding [hidden, rank]."""
    is_embedding: bool = False

    def base_shapes(self, tensors: dict[str, Tensor]) -> tuple[tuple[int, int], ...]:
        """Return the shapes that the module's weight may have: [outputs, inputs], or the transpose of it in GPT-2's layers."""
        ends = tensors[self.up].shape[0], tensors[self.down].shape[1]
        return ((ends[1], ends[0]),) if self.is_embedding else (ends, (ends[1], ends[0]))


def list_lora_pairs(tensors: dict[str, Tensor]) -> list[LoraPair]:
    """Return the complete pairs of an adapter whose matrices have two dimensions, in the order of their names."""
    halves: dict[tuple[str, bool], dict[str, str]] = {}
    for name, tensor in tensors.items():
        if (match := LORA.fullmatch(name)) and len(tensor.shape) == 2:
            place = match["module"].removeprefix(PREFIX), match["embedding"] is not None
            halves.setdefault(place, {})[match["half"]] = name
    return [
        LoraPair(module, pair["A"], pair["B"], is_embedding)
        for (module, is_embedding), pair in sorted(halves.items())
        if len(pair) == 2
    ]


def lora_scale(config: Config, module: str) -> float | None:
    """Return PEFT's factor on B·A of a module: lora_alpha / r, or lora_alpha / √r with use_rslora; None if unknown.

    `alpha_pattern` works like `rank_pattern`, see `lora_rank`.
    """
    rank, alpha = lora_rank(config, module), _match_pattern(config, "alpha_pattern", "lora_alpha", module)
    if not rank or alpha is None:
        return None
    return alpha / (math.sqrt(rank) if config.value.get("use_rslora") is True else rank)


def index_by_tail(names: Iterable[str]) -> dict[str, list[str]]:
    """Map the end of each name, from the name of its layer on, to the names that end so.

    The part before differs between the class that an adapter was trained with and the checkpoint: ``model.language_model.``.

    >>> index_by_tail(["model.layers.0.mlp.up_proj.weight", "lm_head.weight"])
    {'layers.0.mlp.up_proj.weight': ['model.layers.0.mlp.up_proj.weight'], 'lm_head.weight': ['lm_head.weight']}
    """
    by_tail: dict[str, list[str]] = {}
    for name in names:
        by_tail.setdefault(tail_of(name), []).append(name)
    return by_tail


def tail_of(name: str) -> str:
    """Return the end of a name from the name of its layer on; outside the layers the module and the parameter."""
    parts = name.split(".")
    number = next((at for at, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    return ".".join(parts[max(number - 1, 0) :])


def find_vocabulary_rows(tensors: dict[str, Tensor]) -> dict[str, int]:
    """Map each whole embedding or head among the tensors to its number of rows."""
    return {
        name: tensor.shape[0] for name, tensor in tensors.items() if VOCABULARY.search(name) and len(tensor.shape) == 2
    }


def lora_rank(config: Config, module: str) -> int | None:
    """Return the LoRA rank of a module: from `rank_pattern` if a key matches by PEFT's rule, else from `r`.

    None if a key of `rank_pattern` is a regular expression, which ckptcheck does not evaluate, or if `r` is no integer. AdaLoRA
    begins with `init_r`, and writes its own form of `rank_pattern` once it has removed ranks: then they are unknown here.
    """
    if config.value.get("peft_type") == "ADALORA":
        initial = config.value.get("init_r")
        return initial if type(initial) is int and not config.value.get("rank_pattern") else None
    rank = _match_pattern(config, "rank_pattern", "r", module)
    return rank if type(rank) is int else None


def _match_pattern(config: Config, patterns_key: str, default_key: str, module: str) -> float | None:
    patterns = config.value.get(patterns_key)
    for pattern, number in patterns.items() if isinstance(patterns, dict) else ():
        if type(number) in (int, float) and (module.endswith(f".{pattern}") or module == pattern):
            return float(number) if type(number) is float else int(number)
        # Never run a regular expression from a checkpoint.
        if any(sign in pattern for sign in "^$*+?()[]{}|\\"):
            return None
    default = config.value.get(default_key)
    return default if type(default) in (int, float) else None
