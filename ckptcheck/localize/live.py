"""Sends one prompt through a real trainer and a real engine, and keeps what their modules give out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from ckptcheck.engines.activations import Activations
from ckptcheck.host.patience import within
from ckptcheck.localize.localization import Localization


@runtime_checkable
class Side(Protocol):
    """A trainer or an engine that can tell what its modules give out."""

    def activations(self, tokens: Sequence[int], folder: Path) -> Activations:
        """Return what every module gives out for a prompt, over all ranks."""
        ...

    def close(self) -> None:
        """End it."""
        ...


Start = Callable[[], tuple[str, Side]]
"""Starts a side; returns what to call it."""


def localize(
    target: str,
    reference: Start,
    other: Start,
    tokens: Sequence[int],
    folder: Path,
    *,
    dtype: str,
    chosen: int = 0,
    limit: float | None = None,
    timeout: float | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Localization:
    """Start one side after the other, so that they need not fit into memory together, and compare.

    tokens: the prompt, and only the prompt: an engine's prefill has no more. timeout: seconds for each side, its start
    and end included. Raises what the sides raise.
    """
    seen: list[tuple[str, Activations]] = []
    for start in (reference, other):
        with within(timeout):
            name, side = start()
            try:
                say(f"{name}: a forward of {len(tokens)} tokens")
                seen.append((name, side.activations(tokens, folder)))
            finally:
                side.close()
    (here, first), (there, second) = seen
    return Localization(target, (here, there), first, second, dtype, chosen, limit)
