"""Finds values in the state of an optimizer from which training cannot resume: NaN, Inf, negative second moments, only zeros.

All float formats here are sign and magnitude, so two maxima of the bit patterns suffice: the maximum as signed integers is the
largest positive number; the maximum as unsigned integers is the negative number of largest magnitude, if there is a negative one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

STATE = re.compile(r"(^|\.)(exp_avg|(max_)?exp_avg_sq|momentum_buffer|state\.(fp32_)?param)(\.|$)")
BUCKET = re.compile(r"\.bucket_idx_\d+\.")
"""Buckets of the distributed optimizer: they contain uninitialised padding between the weights."""
FORMS = {"F64": (8, 0x7FF << 52), "F32": (4, 0xFF << 23), "BF16": (2, 0xFF << 7), "F16": (2, 0x1F << 10)}
"""dtype → bytes of an element, and the pattern of Inf."""


@dataclass(frozen=True)
class StateStats:
    """What the elements of a state contain."""

    infinite: bool = False
    """NaN or Inf."""
    negative: bool = False
    """A number below zero."""
    zero: bool = True
    """Only zeros."""

    def with_block(self, raw: bytes, dtype: str) -> StateStats:
        """Return the statistics with a block of elements added; a dtype that is not in FORMS adds nothing."""
        if dtype not in FORMS:
            return StateStats(zero=False)
        import numpy as np

        width, infinity = FORMS[dtype]
        usable = len(raw) // width * width
        if not usable:
            return self
        patterns = np.frombuffer(raw, f"<u{width}", usable // width)
        sign = 1 << (8 * width - 1)
        highest, positive = int(patterns.max()), max(int(patterns.view(f"<i{width}").max()), 0)
        below = highest - sign if highest > sign else 0
        return StateStats(
            self.infinite or positive >= infinity or below >= infinity,
            self.negative or below > 0,
            self.zero and not positive and not below,
        )


def is_optimizer_state(key: str) -> bool:
    """Whether a key belongs to a moment or to the master weights of an optimizer, stored weight by weight."""
    return bool(STATE.search(key)) and not BUCKET.search(key)
