"""The settings of a tokenizer_config.json that AutoTokenizer of transformers refuses, whatever the vocabulary is.

Source: transformers 5.23, tokenization_utils_base.py and tokenization_utils_tokenizers.py; each value was tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.setting_text import INTEGER

SIDES = ("left", "right")


def list_refused_settings(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the key of each setting that AutoTokenizer refuses, and why, as the end of a sentence."""
    for key, (is_valid, kind) in CHECKS.items():
        if key in settings and not is_valid(settings[key]):
            yield key, f"is {clip(repr(settings[key]), 40)}, and no {kind}"


def _is_auto_map(value: Any) -> bool:
    classes = value.get("AutoTokenizer") if isinstance(value, dict) else value
    return isinstance(value, (dict, list)) and (not isinstance(classes, list) or len(classes) >= 2)


def _is_length(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and value >= 0)


def _is_list_of_tokens(value: Any) -> bool:
    return value is None or isinstance(value, dict) or (isinstance(value, list) and all(map(_is_token, value)))


def _is_token(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and value.get("__type") == "AddedToken")


CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model_max_length": (_is_length, "length"),
    "tokenizer_class": (lambda value: value is None or isinstance(value, str), "text"),
    "padding_side": (lambda value: value in SIDES, "side, left or right"),
    "truncation_side": (lambda value: value in SIDES, "side, left or right"),
    "model_input_names": (lambda value: isinstance(value, (list, dict, str)), "list"),
    "additional_special_tokens": (_is_list_of_tokens, "list of tokens"),
    "extra_special_tokens": (_is_list_of_tokens, "list of tokens"),
    "model_specific_special_tokens": (lambda value: value is None or isinstance(value, dict), "object"),
    "added_tokens_decoder": (
        lambda value: (
            isinstance(value, dict)
            and all(INTEGER.fullmatch(key) and isinstance(token, dict) for key, token in value.items())
        ),
        "object of tokens under their ids",
    ),
    "split_special_tokens": (lambda value: isinstance(value, bool), "true or false"),
    "auto_map": (_is_auto_map, "object, or list of two classes"),
}
"""Setting → a test of its value, and the required form in words."""
