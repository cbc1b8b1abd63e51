"""Scans on a GPU: torch does the reductions of `scan_chunk` over bytes that are streamed through the device.

The device only confirms that a chunk is sound, and finds its largest magnitude. Any other chunk is scanned again on the CPU,
so that both give the same findings.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.errors import CkptcheckError
from ckptcheck.values.chunk_scan import find_constant_pattern, scan_chunk
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.stats import MIN_ZERO_RUN, ChunkStats
from ckptcheck.values.zero_runs import find_zero_runs

if TYPE_CHECKING:
    import torch

PART = 1 << 26
"""Bytes on the device at a time, for each thread. The reductions need up to twice as many for intermediates."""
SMALL = 1 << 20
"""With fewer bytes the transfer to the device costs more than the scan."""


class DeviceScanner:
    """Scans chunks with torch. device: as torch names it, "cuda", "cuda:1".

    Raises CkptcheckError if torch is not installed or has no such device.
    """

    def __init__(self, device: str) -> None:
        try:
            import torch
        except ImportError as error:
            raise CkptcheckError(f"--set device={device} needs torch, which is not installed here") from error
        try:
            self._device = torch.device(device)
            torch.empty(1, device=self._device)
        # torch built without CUDA raises an AssertionError.
        except (RuntimeError, AssertionError) as error:
            reason = str(error).strip().splitlines()[0]
            raise CkptcheckError(f"torch {torch.__version__} has no device {device}: {reason}") from error

    def __call__(self, raw: NDArray[np.uint8], dtype: str) -> ChunkStats:
        """Scan the bytes of (part of) a tensor as `scan_chunk` does."""
        form = FORMATS[dtype]
        wide_integer = form.integer and form.bits > 8
        if raw.size < SMALL or form.bits == 64 or form.fnuz or wide_integer or raw.size % 8 or raw.ctypes.data % 8:
            return scan_chunk(raw, dtype)
        maximum = 0
        for start in range(0, raw.size, PART):
            part_maximum = self._max_pattern(raw[start : start + PART], form.bits, form.sign)
            if part_maximum is None or (form.limit is not None and part_maximum >= form.limit):
                return scan_chunk(raw, dtype)
            maximum = max(maximum, part_maximum)
        # All elements are minus zero.
        if not maximum:
            return scan_chunk(raw, dtype)
        runs_at_ends = find_zero_runs(raw, False)
        return ChunkStats(maximum, constant=find_constant_pattern(raw.view(form.unsigned)), zero_runs=runs_at_ends)

    def _max_pattern(self, raw: NDArray[np.uint8], bits: int, sign: int) -> int | None:
        """Return the largest pattern without sign; None if there may be a run of zeros."""
        import torch

        # torch warns that the buffer is read-only. Nothing writes to it.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            words = torch.frombuffer(raw, dtype=torch.int64).to(self._device)
        if not bool((words[:: MIN_ZERO_RUN // 8 - 1] != 0).all()):
            return None
        view: Any = {8: torch.uint8, 16: torch.int16, 32: torch.int32}[bits]
        patterns: torch.Tensor = words.view(view)
        return int((patterns & (sign - 1)).amax() if sign else patterns.amax())
