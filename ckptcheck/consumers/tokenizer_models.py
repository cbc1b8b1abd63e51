"""Tokenizer classes of transformers that take the tokens of tokenizer.json, but build their own model and its steps from them.

In transformers 5, `BertTokenizer` builds a WordPiece from whatever tokens it finds, and `GPT2Tokenizer` cuts words as GPT-2 does;
transformers 4 loaded tokenizer.json as it was. tokenizer_classes.json holds what `fixtures/learn_tokenizer_classes.py` learned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

KINDS = ("BPE", "Unigram", "WordPiece")
"""The kinds of models that are distinguished. WordLevel is not: another kind may read whole words as well."""
FLAGS = ("continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges")
"""The settings of a BPE that decide how it cuts a word."""
GENERIC = ("TokenizersBackend", "PythonBackend", "PreTrainedTokenizerFast", "MistralCommonBackend")
"""The classes that load tokenizer.json as it is; `MistralCommonBackend` is taken where there is a tekken.json."""
VLLM_GENERIC_TYPES = ("internlm2", "step3_vl", "step3p7", "unlimited-ocr", "unlimited_ocr")
"""Model types for which vLLM 0.32 loads tokenizer.json as it is (`_MODEL_TYPES_WITH_INCORRECT_TOKENIZER_CLASS`,
tokenizers/registry.py)."""


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(Path(__file__).with_name("tokenizer_classes.json").read_bytes())
    return table


def find_built_class(named: str | None, model_type: str | None, *, byte_level: bool) -> str | None:
    """Return the class that AutoTokenizer of transformers 5 takes; None if it loads the file as it is, or is unknown.

    `from_pretrained` of transformers 5.24, models/auto/tokenization_auto.py.

    Args:
        named: the class that tokenizer_config.json, or else config.json, names.
        model_type: of config.json.
        byte_level: whether tokenizer.json has a step ``ByteLevel``.
    """
    table = _table()
    usual, is_corrected = table["types"].get(model_type), model_type in table["corrected"]
    taken = named.removesuffix("Fast") if named is not None else usual
    if named is not None and usual is not None and usual != taken:
        taken = None if usual in GENERIC else usual if is_corrected else taken
    mistral = usual == "MistralCommonBackend"
    if (
        named is not None
        and named.removesuffix("Fast") == "LlamaTokenizer"
        and byte_level
        and not (mistral or is_corrected)
    ):
        return None
    return taken if taken in table["classes"] else None


def find_built_model(class_name: str) -> str:
    """Return the kind of model that a class builds whatever tokenizer.json says. class_name: as `find_built_class` returns it."""
    kind: str = _table()["classes"][class_name]["kind"]
    return kind


def find_built_steps(class_name: str, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the `normalizer`, the `pre_tokenizer` and the FLAGS (`model`) that a class builds; None where they are not known.

    settings: those of tokenizer_config.json.
    """
    facts = _table()["classes"][class_name]
    return choose_steps(facts, settings) if "steps" in facts else None


def list_own_tokens(class_name: str) -> list[str]:
    """Return the special tokens that a class with known steps adds where no file names others."""
    tokens: list[str] = _table()["classes"][class_name]["tokens"]
    return tokens


def choose_steps(facts: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the steps of the variant that most settings name, or the default ones. facts: of one class in the table."""
    fitting = [each for each in facts.get("variants", ()) if all(settings.get(key) is each[0][key] for key in each[0])]
    return {**facts["steps"], **max(fitting, key=lambda each: len(each[0]), default=({}, {}))[1]}
