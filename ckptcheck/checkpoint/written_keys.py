"""Which keys transformers always writes into the config.json of a class, though no tensor shows their values.

A table that fixtures/learn_written_keys.py generates from two versions of transformers: what both write was written by all between.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

VERSION_PARTS = 2
"""Parts of a version that are compared with the newer one: its patches write what it writes."""


def list_written_keys(model_type: str, version: tuple[int, ...]) -> tuple[str, ...]:
    """Return the keys that a version of transformers (major, minor, patch) writes for a model type; () where that is not known."""
    table = _table()
    since, until = _parse(table["since"]), _parse(table["until"])
    if not (since <= version and version[:VERSION_PARTS] <= until[:VERSION_PARTS]):
        return ()
    return tuple(table["classes"].get(model_type, ()))


def _parse(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@cache
def _table() -> Any:
    return json.loads((Path(__file__).parent / "written_keys.json").read_bytes())
