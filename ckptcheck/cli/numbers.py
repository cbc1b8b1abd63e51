"""Numbers that a user gives."""

from __future__ import annotations

import re
from math import isfinite

import typer

GPU = re.compile(r"[0-9]+|GPU-[0-9a-fA-F-]+|MIG-[0-9a-zA-Z/-]+")
"""One of those that CUDA_VISIBLE_DEVICES takes: a number, or a UUID as ``nvidia-smi --list-gpus`` says it."""


def finite(value: float | None) -> float | None:
    """Take a finite number that is not negative; nothing is larger than NaN, and everything is within infinity.

    A callback of an option: what it refuses is trouble with the command (exit 2).
    """
    if value is not None and not (isfinite(value) and value >= 0):
        raise typer.BadParameter(f"{value:g} is no finite number from 0 on")
    return value


def gpus(value: str | None) -> str | None:
    """Take a list of GPUs, "" for none; CUDA shows a process no GPU at all where an entry is none, and says nothing.

    A callback of an option, as `finite`.

    >>> gpus("0, 1"), gpus("")
    ('0,1', '')
    """
    if not value:
        return value
    listed = [each.strip() for each in value.split(",")]
    for each in listed:
        if not GPU.fullmatch(each):
            raise typer.BadParameter(f"{each!r} is no GPU: they are numbers or UUIDs, with commas between")
    if len({*listed}) < len(listed):
        raise typer.BadParameter(f"{value} names a GPU twice")
    return ",".join(listed)
