"""Limits the GPUs that a process sees."""

from __future__ import annotations

import re

from ckptcheck.errors import CkptcheckError

VISIBLE = "CUDA_VISIBLE_DEVICES"
NCCL = {"TORCH_DIST_USE_NCCL2": "0"}
"""If this is 1, torch 2.14 builds a group named ``nccl`` as ProcessGroupNCCL2. The trainer makes a ProcessGroupNCCL,
and SGLang a group by that name: with 0 on both sides the two groups are of one kind, whatever default a later torch
has."""
GPU = re.compile(r"[0-9]+|GPU-[0-9a-fA-F-]+|MIG-[0-9a-zA-Z/-]+")
"""One entry of CUDA_VISIBLE_DEVICES: a number, or a UUID as ``nvidia-smi --list-gpus`` prints it."""


def normalize_gpus(gpus: str) -> str:
    """Return a list of GPUs without spaces; "" for none.

    If one entry is malformed, CUDA hides every GPU without a message. Raises CkptcheckError for such an entry, and for
    a GPU that is listed twice.

    >>> normalize_gpus("0, 1"), normalize_gpus("")
    ('0,1', '')
    """
    if not gpus:
        return gpus
    entries = [entry.strip() for entry in gpus.split(",")]
    for entry in entries:
        if not GPU.fullmatch(entry):
            raise CkptcheckError(f"{entry!r} is no GPU: they are numbers or UUIDs, with commas between")
    if len({*entries}) < len(entries):
        raise CkptcheckError(f"{gpus} names a GPU twice")
    return ",".join(entries)


def gpu_variables(gpus: str | None) -> dict[str, str]:
    """Return the variables of a process on these GPUs. gpus: "0,1"; "" for none, None for all that this process sees.

    >>> gpu_variables("1")
    {'CUDA_VISIBLE_DEVICES': '1', 'TORCH_DIST_USE_NCCL2': '0'}
    >>> gpu_variables(""), gpu_variables(None)
    ({'CUDA_VISIBLE_DEVICES': ''}, {'TORCH_DIST_USE_NCCL2': '0'})
    """
    if gpus == "":
        return {VISIBLE: gpus}
    return NCCL if gpus is None else {VISIBLE: gpus, **NCCL}
