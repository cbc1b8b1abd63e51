"""Experiments that leave tokens out: those of older weights, and those that the two sides compute by other parts of the model.

The gap of tokens that older weights generated is intended, if both sides agree with equal weights. The search sets these tokens
aside before it runs any other experiment, and runs theirs last: what the engine computes is to be right before a gap is called
staleness, which a correction of the objective may answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.attribution.experiment import Backend, SearchState, Trial
from ckptcheck.rollouts.rollout_queries import parse_version
from ckptcheck.text.formatting import count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.rollouts.rollouts import Rollouts


def find_older_tokens(rollouts: Rollouts) -> tuple[NDArray[np.bool_], int]:
    """Return which tokens [T] older weights generated than those that the trainer scored with, and the largest lag in versions.

    Raises Skip where versions are not recorded on both sides, or have no order.
    """
    import numpy as np

    metadata, spans = rollouts.metadata, rollouts.columns.get("version_spans")
    recorded_version = metadata.trainer.weight_version if metadata.trainer is not None else None
    if spans is None or recorded_version is None or (trainer_version := parse_version(recorded_version)) is None:
        raise Skip("weight versions of tokens and trainer are not both recorded")
    older, largest_lag = np.zeros(len(rollouts.tokens), bool), 0
    for begin, end, index in np.asarray(spans).tolist():
        version = parse_version(metadata.versions[index])
        if version is None:
            raise Skip(f"the weight version {metadata.versions[index]} has no order")
        if version < trainer_version:
            older[begin:end] = True
            largest_lag = max(largest_lag, trainer_version - version)
    return older, largest_lag


def set_aside(backend: Backend, state: SearchState) -> SearchState:
    """Return the state in which the other experiments run: without the older tokens.

    Where every token is older, they stay, and the engine scores them with the trainer's weights. The state is returned unchanged
    where there are no older tokens, their versions are not known, or no engine can score them.
    """
    try:
        older, _ = find_older_tokens(backend.rollouts)
        if not (older & state.mask).any():
            return state
        if (state.mask & ~older).any():
            return replace(state, mask=state.mask & ~older)
        return replace(state, q=backend.engine(state.engine))
    except Skip:
        return state


def bring_back(recorded: SearchState, state: SearchState, rollouts: Rollouts) -> SearchState:
    """Return the state with the older tokens as the engine reported them. recorded: the state before any change."""
    import numpy as np

    try:
        older, _ = find_older_tokens(rollouts)
    except Skip:
        return state
    older &= recorded.mask & np.isfinite(state.p)
    return replace(state, q=np.where(older, recorded.q, state.q), mask=state.mask | older)


def score_older_tokens(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Have the engine score the older tokens with the trainer's weights; where it cannot, leave them out."""
    import numpy as np

    older, largest_lag = find_older_tokens(backend.rollouts)
    compared = older & state.mask
    if not compared.any():
        return
    share = float(compared.sum() / state.mask.sum())
    cause = f"they are up to {count(largest_lag, 'version')} old, as expected in an asynchronous job"
    hint = "this is off-policy data, not an error: correct for it (truncated importance sampling), or bound the lag"
    try:
        scored: NDArray[Any] = backend.engine(state.engine)
    except Skip as error:
        if not (state.mask & ~older).any():
            raise Skip(
                f"every token is {count(largest_lag, 'version')} old, and no engine could score them with the trainer's weights"
                f" ({error})"
            ) from error
        yield Trial(
            f"without the {share:.0%} of tokens that older weights generated",
            f"{cause}; that both sides would agree on them with equal weights is not tested ({error})",
            hint,
            replace(state, mask=state.mask & ~older),
            only_drops_tokens=True,
        )
        return
    yield Trial(
        f"when the engine scores the tokens of older weights ({share:.0%} of all) with the trainer's weights",
        cause,
        hint,
        replace(state, q=np.where(older, scored, state.q)),
    )


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
