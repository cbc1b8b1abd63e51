"""What comes out of reading a config: who judges a module, and the lists whose entries it goes through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ckptcheck.dialects.base import Judge, Refused, Unknown
from ckptcheck.dialects.entries import Entries


@dataclass(frozen=True)
class Reader:
    """A config as one consumer read it. lists: the key of each list → its entries."""

    judge: Judge
    lists: Mapping[str, Entries] = field(default_factory=dict)


def text_list(config: Mapping[str, Any], *keys: str) -> list[str]:
    """Return the first of these lists that is there, [] for none. A string is the list of its letters to every consumer.

    Raises Refused for what is no list, Unknown for one of more than strings: some consumers never look closely enough
    to mind.
    """
    for key in keys:
        if config.get(key) is None:
            continue
        listed = config[key]
        if isinstance(listed, str):
            return list(listed)
        if not isinstance(listed, list):
            raise Refused(f"{key} is not a list")
        if not all(isinstance(each, str) for each in listed):
            raise Unknown(f"{key} holds more than strings")
        return list(listed)
    return []
