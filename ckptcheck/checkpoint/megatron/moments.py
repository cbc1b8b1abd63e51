"""What the state of an optimizer holds that no training can go on from: NaN, Inf, negative second moments, nothing at all.

All floats here are sign and magnitude, so two maxima of the bit patterns tell it: of the patterns as signed integers (the
largest positive number) and as unsigned ones (the largest negative one, if there is any).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

STATE = re.compile(r"(^|\.)(exp_avg|(max_)?exp_avg_sq|momentum_buffer|state\.(fp32_)?param)(\.|$)")
BUCKET = re.compile(r"\.bucket_idx_\d+\.")
"""Buckets of the distributed optimizer: between the weights they are padded with memory that nothing filled."""
FORMS = {"F64": (8, 0x7FF << 52), "F32": (4, 0xFF << 23), "BF16": (2, 0xFF << 7), "F16": (2, 0x1F << 10)}
"""dtype → bytes of an element, and the pattern of Inf."""


@dataclass(frozen=True)
class State:
    """infinite: NaN or Inf is among the elements. negative: a number below zero is. zero: nothing but zeros."""

    infinite: bool = False
    negative: bool = False
    zero: bool = True

    def with_block(self, raw: bytes, dtype: str) -> State:
        """Add a block of elements; one of another dtype than FORMS tells nothing."""
        if dtype not in FORMS:
            return State(zero=False)
        import numpy as np

        width, infinity = FORMS[dtype]
        usable = len(raw) // width * width
        if not usable:
            return self
        patterns = np.frombuffer(raw, f"<u{width}", usable // width)
        sign = 1 << (8 * width - 1)
        highest, positive = int(patterns.max()), max(int(patterns.view(f"<i{width}").max()), 0)
        below = highest - sign if highest > sign else 0
        return State(
            self.infinite or positive >= infinity or below >= infinity,
            self.negative or below > 0,
            self.zero and not positive and not below,
        )


def is_state(key: str) -> bool:
    """Whether a key is of a moment or of the master weights of an optimizer, stored weight by weight."""
    return bool(STATE.search(key)) and not BUCKET.search(key)
