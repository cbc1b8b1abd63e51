"""Reads lists out of a quantization config, as the consumers' code does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptcheck.consumers.base import ConsumerError, UnknownBehavior


def read_text_list(config: Mapping[str, Any], *keys: str) -> list[str]:
    """Return the first of these lists that the config has, [] for none. To every consumer a string is the list of its letters.

    Raises:
        ConsumerError: if it is no list.
        UnknownBehavior: if it has entries that are no strings, which some consumers never notice.

    """
    for key in keys:
        if config.get(key) is None:
            continue
        listed = config[key]
        if isinstance(listed, str):
            return list(listed)
        if not isinstance(listed, list):
            raise ConsumerError(f"{key} is not a list")
        if not all(isinstance(each, str) for each in listed):
            raise UnknownBehavior(f"{key} holds more than strings")
        return list(listed)
    return []


def read_ignore_list(config: Mapping[str, Any], key: str = "ignore") -> list[object]:
    """Return the ignore list with entries of any type. The engines iterate over it, so a string is the list of its letters.

    Raises:
        ConsumerError: for what the engines cannot iterate over.
        UnknownBehavior: for an object.

    """
    listed = config.get(key, [])
    if isinstance(listed, str | list):
        return list(listed)
    if isinstance(listed, dict):
        raise UnknownBehavior(f"{key} is an object")
    raise ConsumerError(f"{key} is not a list")
