"""Checks what a job passes to a watch: what would fail hours later, at a sync, is refused before the first one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from ckptcheck.errors import CkptcheckError

ASKED = ("name", "alike", "held", "version")
"""What a watch asks of an engine."""


def check_arguments(engine: Any, on: Any, numbers: Mapping[str, Any]) -> None:
    """Raise CkptcheckError for what no sync could work with. numbers: `every`, `share` and `budget` by name."""
    if engine is not None and not all(hasattr(engine, name) for name in ASKED):
        hint = (
            "use servers(url, …) for running servers, module(model) for a model in this process, record=… for the file"
        )
        raise CkptcheckError(f"Watch takes an engine first, and {_describe(engine)} is none", hint)
    if on not in ("warn", "raise") and not callable(on):
        raise CkptcheckError(f"on={on!r} is neither 'warn' nor 'raise' nor a function")
    for name, value in numbers.items():
        is_number = isinstance(value, Integral if name == "every" else Real)
        if not is_number or isinstance(value, bool) or not value >= 0:
            raise CkptcheckError(f"{name}={value!r} is no {'whole ' if name == 'every' else ''}number from 0 on")


def find_record_path(record: Path | str) -> Path:
    """Return the absolute path of a record: a job may change its folder. Raises CkptcheckError for what names no file."""
    if re.match(r"[a-z][a-z0-9+.-]*://", str(record)):
        raise CkptcheckError(f"a record is a file of this machine, and {record} is an address")
    path = Path(record).expanduser().absolute()
    if not str(record) or path.is_dir():
        raise CkptcheckError(f"record={str(record)!r} is a folder", "name a file in it: syncs.jsonl")
    return path


def convert_number(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Return a step or a loss as the record can keep it; None for what is no number. A job has them as tensors, too."""
    if value is None or type(value) is convert:
        return value
    try:
        return convert(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None


def _describe(value: Any) -> str:
    return repr(value) if isinstance(value, str | Path) else f"a {type(value).__name__}"
