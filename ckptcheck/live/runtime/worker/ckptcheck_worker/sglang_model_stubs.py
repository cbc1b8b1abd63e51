"""Lets models of SGLang be built without their kernels and GPUs: building calls none."""

from __future__ import annotations

from typing import Any

import torch


def stub_device() -> None:
    """Let models look up kernels that only SGLang's own build for CPUs has, and ask for the GPU."""
    kernels = type(torch.ops.sgl_kernel)
    known = kernels.__getattr__

    def get(namespace: Any, name: str) -> Any:
        try:
            return known(namespace, name)
        except AttributeError:
            if not name.endswith("_cpu"):
                raise
            return lambda *_, **__: None

    kernels.__getattr__ = get
    torch.cuda.get_device_capability = lambda *_: (9, 0)
