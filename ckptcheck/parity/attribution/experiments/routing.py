"""Leaves out tokens that the two sides route to different experts: only a routing replay could undo that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck.parity.attribution.backend import Backend, NotAvailable
from ckptcheck.parity.attribution.experiment import Trial
from ckptcheck.parity.attribution.state import SearchState
from ckptcheck.text.formatting import count


def tried(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Leave out rerouted tokens and all tokens after them in their sequence."""
    import numpy as np

    engine_experts, trainer_experts = (
        backend.rollouts.columns.get(f"{side}_routing") for side in ("engine", "trainer")
    )
    if engine_experts is None or trainer_experts is None or engine_experts.shape != trainer_experts.shape:
        raise NotAvailable("the experts of tokens are not recorded on both sides")
    is_recorded = ((engine_experts >= 0) & (trainer_experts >= 0)).all((1, 2))
    rerouted = is_recorded & (np.sort(engine_experts, -1) != np.sort(trainer_experts, -1)).any((1, 2))
    affected = np.zeros_like(rerouted)
    for number in range(backend.rollouts.sequence_count):
        span = backend.rollouts.sequence(number)
        affected[span] = np.logical_or.accumulate(rerouted[span])
    # a token's logprob is computed at the position before it
    affected = np.roll(affected, 1)
    remaining = state.mask & ~affected
    dropped_tokens = int((state.mask & affected).sum())
    if not dropped_tokens:
        return
    if not remaining.any():
        raise NotAvailable("every token comes after one that went to other experts")
    yield Trial(
        f"when each sequence is cut at its first rerouted token ({count(dropped_tokens, 'token')})",
        f"routers send {int(rerouted.sum()):,} tokens to other experts",
        "replay the engine's routing in the trainer, or compute the routers in float32 on both sides",
        replace(state, mask=remaining),
        only_drops_tokens=True,
    )
