"""Which GPUs a process may see."""

from __future__ import annotations

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible(gpus: str | None) -> dict[str, str]:
    """Return the environment that shows a process these GPUs only. gpus: "0,1"; "" for none, None for those of ours.

    >>> visible("1"), visible(""), visible(None)
    ({'CUDA_VISIBLE_DEVICES': '1'}, {'CUDA_VISIBLE_DEVICES': ''}, {})
    """
    return {} if gpus is None else {VISIBLE: gpus}
