"""Sends one prompt through a real trainer and a real engine, and captures the outputs of their modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ckptcheck.live.localize.localization import Localization
from ckptcheck.live.runtime.engines.activations import Activations, ActivationSource
from ckptcheck.live.runtime.process.deadlines import time_budget

Start = Callable[[], tuple[str, ActivationSource]]
"""Starts a side; returns its name in the report, and the side."""


def localize(
    target: str,
    reference: Start,
    other: Start,
    tokens: Sequence[int],
    folder: Path,
    *,
    dtype: str,
    experts_per_token: int = 0,
    limit: float | None = None,
    timeout: float | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Localization:
    """Start one side after the other, so that they need not fit into memory together, and compare their activations.

    Args:
        target: what the report calls the comparison.
        reference: starts the side that the other is compared with.
        other: starts the other side.
        tokens: the ids of the prompt, and only of the prompt: an engine's prefill covers nothing else.
        folder: for temporary files.
        dtype: the compute dtype of both sides, which sets the default limit.
        experts_per_token: 0 for a dense model.
        limit: relative difference that still counts as equal; None: that of the dtype.
        timeout: seconds for each side, its start and end included.
        say: receives a message for each side.

    Raises what the sides raise.
    """
    captures: list[tuple[str, Activations]] = []
    for start in (reference, other):
        with time_budget(timeout):
            name, side = start()
            try:
                say(f"{name}: a forward of {len(tokens)} tokens")
                captures.append((name, side.capture_activations(tokens, folder)))
            finally:
                side.close()
    (reference_name, reference_activations), (other_name, other_activations) = captures
    return Localization(
        target, (reference_name, other_name), reference_activations, other_activations, dtype, experts_per_token, limit
    )
