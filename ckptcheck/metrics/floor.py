"""The gap that a model has with the same weights on both sides: what no fault explains, and no sync can get below."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import Any

import msgspec

from ckptcheck.errors import CkptcheckError
from ckptcheck.metrics.gap import Gap

FORMAT = "ckptcheck-floor/1"
EXCESS = {"mult_prob_error": 1.0, "ratio": 1.0}
"""Metrics whose perfect value is not 0: what counts is how far they are above it."""
QUADRATIC = {"k3"}
"""Metrics that grow with the square of the gap: of those the root is compared, so that a multiple means the same for all."""
COMPARED = ("mult_prob_error", "k3", "abs_mean", "prob_diff_mean")
"""Metrics that are held against a floor. The largest difference is not among them: it grows with the number of tokens."""


class Floor(msgspec.Struct, frozen=True, omit_defaults=True):
    """metrics: name, as `Gap.numbers` has it → the largest value that was measured. sources: how it was measured.

    engine, trainer: name, version and dtype. vocabulary: rows of the model's embedding.
    """

    metrics: dict[str, float]
    model: str = ""
    engine: str = ""
    trainer: str = ""
    vocabulary: int | None = None
    tokens: int = 0
    sources: list[str] = []
    tool: str = ""
    format: str = ""

    @classmethod
    def of(cls, gaps: dict[str, Gap], **about: Any) -> Floor:
        """Take the largest of every metric over measurements. gaps: how it was measured → what."""
        from ckptcheck import __version__

        metrics = {name: max(float(each.numbers()[name] or 0) for each in gaps.values()) for name in COMPARED}
        tokens = sum(each.tokens for each in gaps.values())
        return cls(metrics, tokens=tokens, sources=list(gaps), tool=f"ckptcheck {__version__}", format=FORMAT, **about)

    def multiple(self, name: str, value: float) -> float | None:
        """How many times the floor a value is; None where the floor is 0 or has no such metric."""
        perfect = EXCESS.get(name, 0.0)
        least = self.metrics.get(name, perfect) - perfect
        if least <= 0:
            return None
        times = (value - perfect) / least
        return sqrt(times) if name in QUADRATIC and times > 0 else times


def write(floor: Floor, path: Path) -> None:
    """Write a floor. Raises CkptcheckError."""
    from ckptcheck.writing import replace_file

    replace_file(path, msgspec.json.format(msgspec.json.encode(floor, order="deterministic"), indent=2) + b"\n")


def read(path: Path) -> Floor:
    """Read a floor: one that was written, or rollouts whose own gap is meant. Raises CkptcheckError when it is neither."""
    try:
        raw = path.read_bytes() if path.stat().st_size < 1 << 20 else b""
        if raw.lstrip()[:1] == b"{" and (floor := _decoded(raw)) is not None:
            return floor
    except OSError as error:
        raise CkptcheckError(f"cannot read the floor {path}: {error.strerror or error}") from error
    return _measured(path)


def _decoded(raw: bytes) -> Floor | None:
    try:
        floor = msgspec.json.decode(raw, type=Floor)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return floor if floor.format == FORMAT and floor.metrics.keys() & set(COMPARED) else None


def _measured(path: Path) -> Floor:
    from ckptcheck.metrics.gap import gap
    from ckptcheck.rollouts import read as read_rollouts

    rollouts = read_rollouts(path)
    sound = not rollouts.defects and {"engine_logprobs", "trainer_logprobs"} <= rollouts.columns.keys()
    found = gap(rollouts) if sound else None
    if found is None:
        raise CkptcheckError(f"{path} is no floor, and no rollouts that both sides scored")
    about = rollouts.metadata
    sides = {name: side.spoken for name in ("engine", "trainer") if (side := getattr(about, name)) is not None}
    return Floor.of({f"the gap of {path.name}": found}, model=about.model, vocabulary=about.vocabulary, **sides)
