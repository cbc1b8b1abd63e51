"""Leaves out tokens that older weights generated: their gap is intended, if the remaining tokens agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck.parity.attribution.backend import Backend, NotAvailable
from ckptcheck.parity.attribution.experiment import Trial
from ckptcheck.parity.attribution.state import SearchState
from ckptcheck.parity.rollout_queries import parse_version
from ckptcheck.text.formatting import count


def tried(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Leave out tokens of older weights."""
    import numpy as np

    metadata, spans = backend.rollouts.metadata, backend.rollouts.columns.get("version_spans")
    recorded_version = metadata.trainer.weight_version if metadata.trainer is not None else None
    if spans is None or recorded_version is None or (trainer_version := parse_version(recorded_version)) is None:
        raise NotAvailable("weight versions of tokens and trainer are not both recorded")
    stale, largest_lag = np.zeros(len(state.mask), bool), 0
    for begin, end, index in np.asarray(spans).tolist():
        version = parse_version(metadata.versions[index])
        if version is None:
            raise NotAvailable(f"the weight version {metadata.versions[index]} has no order")
        if version < trainer_version:
            stale[begin:end] = True
            largest_lag = max(largest_lag, trainer_version - version)
    if not (stale & state.mask).any():
        return
    fresh = state.mask & ~stale
    if not fresh.any():
        raise NotAvailable(
            f"every token is {count(largest_lag, 'version')} old, and no trainer of those weights is there"
        )
    share = float((stale & state.mask).sum() / state.mask.sum())
    yield Trial(
        f"without the {share:.0%} of tokens that older weights generated",
        f"they are up to {count(largest_lag, 'version')} old, as expected in an asynchronous job",
        "this is off-policy data, not an error: correct for it (truncated importance sampling), or bound the lag",
        replace(state, mask=fresh),
        only_drops_tokens=True,
    )
