"""Leaves out tokens that the two sides compute by other parts of the model: only a replay could undo that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.attribution.backend import Backend
from ckptcheck.live.experiments.attribution.experiment import SearchState, Trial
from ckptcheck.text.formatting import count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def experts(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Leave out tokens that go to other experts, and all tokens after them in their sequence."""
    import numpy as np

    engine_experts, trainer_experts = (
        backend.rollouts.columns.get(f"{side}_routing") for side in ("engine", "trainer")
    )
    if engine_experts is None or trainer_experts is None or engine_experts.shape != trainer_experts.shape:
        raise Skip("the experts of tokens are not recorded on both sides")
    is_recorded = ((engine_experts >= 0) & (trainer_experts >= 0)).all((1, 2))
    rerouted = is_recorded & (np.sort(engine_experts, -1) != np.sort(trainer_experts, -1)).any((1, 2))
    remaining, dropped_tokens = _cut_sequences(backend, state, rerouted, "one that went to other experts")
    if dropped_tokens:
        yield Trial(
            f"when each sequence is cut at its first rerouted token ({count(dropped_tokens, 'token')})",
            f"routers send {int(rerouted.sum()):,} tokens to other experts",
            "replay the engine's routing in the trainer, or compute the routers in float32 on both sides",
            replace(state, mask=remaining),
            only_drops_tokens=True,
        )


def _cut_sequences(
    backend: Backend, state: SearchState, other: NDArray[np.bool_], culprit: str
) -> tuple[NDArray[np.bool_], int]:
    """Return the mask without the tokens after the first other one of each sequence, and the number of dropped tokens.

    other: bool [T]. culprit: what the tokens come after, for the message that no token is left. Raises Skip.
    """
    import numpy as np

    affected = np.zeros_like(other)
    for number in range(backend.rollouts.sequence_count):
        span = backend.rollouts.sequence(number)
        affected[span] = np.logical_or.accumulate(other[span])
    # a token's logprob is computed at the position before it
    affected = np.roll(affected, 1)
    remaining = state.mask & ~affected
    dropped_tokens = int((state.mask & affected).sum())
    if dropped_tokens and not remaining.any():
        raise Skip(f"every token comes after {culprit}")
    return remaining, dropped_tokens
