"""Tokens whose experts were others on the two sides; what they are, no forward can take back, only a replay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck.attribution.rung import Experiment
from ckptcheck.attribution.state import State
from ckptcheck.attribution.world import Unable, World


def tried(world: World, state: State) -> Iterator[Experiment]:
    """Leave out tokens that went, or follow one in their sequence that went, to other experts."""
    import numpy as np

    a, b = (world.rollouts.columns.get(f"{side}_routing") for side in ("engine", "trainer"))
    if a is None or b is None or a.shape != b.shape:
        raise Unable("the experts of tokens are not recorded on both sides")
    known = ((a >= 0) & (b >= 0)).all((1, 2))
    other = known & (np.sort(a, -1) != np.sort(b, -1)).any((1, 2))
    touched = np.zeros_like(other)
    for number in range(world.rollouts.number):
        where = world.rollouts.sequence(number)
        touched[where] = np.logical_or.accumulate(other[where])
    # a token's logprob is computed at the position before it
    touched = np.roll(touched, 1)
    rest = state.mask & ~touched
    if not (state.mask & touched).any():
        return
    if not rest.any():
        raise Unable("every token comes after one that went to other experts")
    yield Experiment(
        f"without {int((state.mask & touched).sum()):,} tokens from the first that went to other experts on",
        f"routers send {int(other.sum()):,} tokens to other experts",
        "replay the engine's routing in the trainer, or compute the routers in float32 on both sides",
        replace(state, mask=rest),
        rest=True,
    )
