"""The look on a GPU: the same reductions by torch, over bytes that are streamed through the device.

It only says that all is well, and how large the largest magnitude is. Whatever is not well goes through the look on the
host, so that both give the same findings.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.errors import CkptcheckError
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.look import Seen, constant_pattern, look
from ckptcheck.values.stats import RUN
from ckptcheck.values.zeros import zero_runs

if TYPE_CHECKING:
    import torch

PART = 1 << 26
"""Bytes on the device at a time, for each thread; the reductions take up to twice as many for their intermediates."""
SMALL = 1 << 20
"""Bytes below which the way to the device costs more than the look."""


class DeviceLook:
    """A look with torch. device: as torch names it, "cuda", "cuda:1".

    Raises CkptcheckError where torch is not installed or sees no such device.
    """

    def __init__(self, device: str) -> None:
        try:
            import torch
        except ImportError as error:
            raise CkptcheckError(f"--device {device} needs torch, which is not installed here") from error
        try:
            self._device = torch.device(device)
            torch.empty(1, device=self._device)
        except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
            reason = str(error).strip().splitlines()[0]
            raise CkptcheckError(f"torch {torch.__version__} has no device {device}: {reason}") from error

    def __call__(self, raw: NDArray[np.uint8], dtype: str) -> Seen:
        """Look at the bytes of (part of) a tensor as `look.look` does."""
        form = FORMATS[dtype]
        wide_integer = form.integer and form.bits > 8
        if raw.size < SMALL or form.bits == 64 or form.fnuz or wide_integer or raw.size % 8 or raw.ctypes.data % 8:
            return look(raw, dtype)
        top = 0
        for start in range(0, raw.size, PART):
            found = self._top(raw[start : start + PART], form.bits, form.sign)
            if found is None or (form.limit is not None and found >= form.limit):
                return look(raw, dtype)
            top = max(top, found)
        if not top:  # nothing but zeros of the other sign
            return look(raw, dtype)
        at_the_ends = zero_runs(raw, False)
        return Seen(top, constant=constant_pattern(raw.view(form.unsigned)), zero_runs=at_the_ends)

    def _top(self, raw: NDArray[np.uint8], bits: int, sign: int) -> int | None:
        """Return the largest pattern without sign; None where there may be a run of zeros."""
        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it may not be written to: it is not
            words = torch.frombuffer(raw, dtype=torch.int64).to(self._device)
        if not bool((words[:: RUN // 8 - 1] != 0).all()):
            return None
        view: Any = {8: torch.uint8, 16: torch.int16, 32: torch.int32}[bits]
        patterns: torch.Tensor = words.view(view)
        return int((patterns & (sign - 1)).amax() if sign else patterns.amax())
