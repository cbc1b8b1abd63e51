"""Tokens drawn by weights older than those that scored them: a gap by design, if the rest agrees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck.attribution.rung import Experiment
from ckptcheck.attribution.state import State
from ckptcheck.attribution.world import Unable, World
from ckptcheck.parity.judging import number_of
from ckptcheck.phrase import count


def tried(world: World, state: State) -> Iterator[Experiment]:
    """Leave out tokens of older weights."""
    import numpy as np

    about, spans = world.rollouts.metadata, world.rollouts.columns.get("version_spans")
    own = about.trainer.weight_version if about.trainer is not None else None
    if spans is None or own is None or (now := number_of(own)) is None:
        raise Unable("weight versions of tokens and trainer are not both recorded")
    stale, most = np.zeros(len(state.mask), bool), 0
    for begin, end, index in np.asarray(spans).tolist():
        drawn = number_of(about.versions[index])
        if drawn is None:
            raise Unable(f"the weight version {about.versions[index]} has no order")
        if drawn < now:
            stale[begin:end] = True
            most = max(most, now - drawn)
    if not (stale & state.mask).any():
        return
    fresh = state.mask & ~stale
    if not fresh.any():
        raise Unable(f"every token is {count(most, 'version')} old, and no trainer of those weights is there")
    share = float((stale & state.mask).sum() / state.mask.sum())
    yield Experiment(
        f"without the {share:.0%} of tokens that older weights drew",
        f"they lag behind by up to {count(most, 'version')}, by design of an asynchronous job",
        "this is off-policy data, not an error: correct for it (truncated importance sampling), or bound the lag",
        replace(state, mask=fresh),
        rest=True,
    )
