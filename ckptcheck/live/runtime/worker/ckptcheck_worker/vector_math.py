"""Has MKL choose its vector functions on one thread. torch calls them for cos, sin, exp and others on a CPU.

MKL 2024.2, in torch's wheels, chooses the kernel of each function when it is first called. If two threads make that
call together, one of them may use a kernel of 11 bits for its part of the tensor, that one time: engines keep such a
rotary cache for good (pytorch/pytorch#188792). So this module calls each function once with a single number, which
takes no second thread, before any other computation. Processes forked afterwards inherit the choice. Importing this
module does it.
"""

from __future__ import annotations

import torch

NAMES = (
    "acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp", "log", "log10", "log2", "sin", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
"""Functions of torch that MKL computes (aten/src/ATen/cpu/vml.h of torch 2.13)."""


def choose_kernels() -> None:
    """Call each function with one float32 and one float64."""
    for dtype in (torch.float32, torch.float64):
        number = torch.full((1,), 0.5, dtype=dtype, device="cpu")
        for name in NAMES:
            getattr(torch, name)(number)


choose_kernels()
