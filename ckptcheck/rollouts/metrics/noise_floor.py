"""The noise floor: the gap that a model has with the same weights on both sides. No weight sync can get below it."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import Any

import msgspec

from ckptcheck.errors import CkptcheckError
from ckptcheck.rollouts.metrics.logprob_metrics import LogprobMetrics
from ckptcheck.text.file_io import read_regular_file, real_path

LARGEST = 1 << 20
"""Bytes of the largest floor; a larger file may be one of rollouts."""
FORMAT = "ckptcheck-floor/1"
EXCESS = {"mult_prob_error": 1.0, "ratio": 1.0}
"""Metrics whose perfect value is not 0 → the perfect value. A multiple of the floor compares the excess over it."""
QUADRATIC = {"k3"}
"""Metrics that grow with the square of the gap. A multiple compares their roots, so that it means the same for all metrics."""
COMPARED = ("mult_prob_error", "k3", "abs_mean", "prob_diff_mean")
"""Metrics that are compared with a floor. The largest difference is not, because it grows with the number of tokens."""


class NoiseFloor(msgspec.Struct, frozen=True, omit_defaults=True):
    """The metrics of equal weights, and the set-up that they were measured with."""

    metrics: dict[str, float]
    """Name of a metric, as in `LogprobMetrics.numbers` → the largest measured value."""
    model: str = ""
    """Name of the model."""
    engine: str = ""
    """Name, version and dtype of the engine."""
    trainer: str = ""
    """Name, version and dtype of the trainer."""
    vocabulary: int | None = None
    """Number of embedding rows."""
    tokens: int = 0
    """Number of compared tokens in all measurements."""
    sources: list[str] = []
    """How the measurements were taken."""
    tool: str = ""
    """The tool that wrote the floor, and its version."""
    format: str = ""
    """The format of the file, see FORMAT."""

    @classmethod
    def of(cls, gaps: dict[str, LogprobMetrics], **about: Any) -> NoiseFloor:
        """Build a floor from the largest value of every metric. gaps: name of a measurement → its metrics."""
        from ckptcheck import __version__

        metrics = {name: max(float(gap.numbers()[name] or 0) for gap in gaps.values()) for name in COMPARED}
        tokens = sum(gap.tokens for gap in gaps.values())
        return cls(metrics, tokens=tokens, sources=list(gaps), tool=f"ckptcheck {__version__}", format=FORMAT, **about)

    def multiple(self, name: str, value: float) -> float | None:
        """Return how many times the floor a value is; None where the floor is 0 or lacks the metric."""
        perfect = EXCESS.get(name, 0.0)
        least = self.metrics.get(name, perfect) - perfect
        if least <= 0:
            return None
        times = (value - perfect) / least
        return sqrt(times) if name in QUADRATIC and times > 0 else times


def write_noise_floor(floor: NoiseFloor, path: Path) -> None:
    """Write a floor. Raises CkptcheckError where the file cannot be written."""
    from ckptcheck.text.file_io import replace_file

    replace_file(path, msgspec.json.format(msgspec.json.encode(floor, order="deterministic"), indent=2) + b"\n")


def read_noise_floor(path: Path) -> NoiseFloor:
    """Read a floor file, or take the gap of a rollout file as the floor. Raises CkptcheckError where the file is neither."""
    try:
        raw = read_regular_file(real_path(path), LARGEST + 1, is_text=False)  # rollouts are none
        if len(raw) <= LARGEST and raw.lstrip()[:1] == b"{" and (floor := _parse_floor(raw)) is not None:
            return floor
    except OSError as error:
        raise CkptcheckError(f"cannot read the floor {path}: {error.strerror or error}") from error
    return _measure_rollouts(path)


def _parse_floor(raw: bytes) -> NoiseFloor | None:
    try:
        floor = msgspec.json.decode(raw, type=NoiseFloor)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return floor if floor.format == FORMAT and floor.metrics.keys() & set(COMPARED) else None


def _measure_rollouts(path: Path) -> NoiseFloor:
    from ckptcheck.rollouts import read_rollouts
    from ckptcheck.rollouts.metrics.logprob_metrics import compute_metrics

    rollouts = read_rollouts(path)
    has_both_sides = not rollouts.defects and {"engine_logprobs", "trainer_logprobs"} <= rollouts.columns.keys()
    metrics = compute_metrics(rollouts) if has_both_sides else None
    if metrics is None:
        raise CkptcheckError(f"{path} is no floor, and no rollouts that both sides scored")
    metadata = rollouts.metadata
    sides = {name: side.label for name in ("engine", "trainer") if (side := getattr(metadata, name)) is not None}
    return NoiseFloor.of(
        {f"the gap of {path.name}": metrics}, model=metadata.model, vocabulary=metadata.vocabulary, **sides
    )
