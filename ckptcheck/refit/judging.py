"""What several rules ask of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckptcheck.engines.base import Scores
from ckptcheck.refit.apart import Gap, apart
from ckptcheck.refit.trace import Key, RefitTrace, Scoring, Sync


def changed(sync: Sync) -> set[Key]:
    """Return parameters that differ from the cold load and were written whole."""
    return {
        key for key, (entry, _) in sync.differing.items() if entry.kind == "parameter" and key not in sync.leftovers
    }


def stale(trace: RefitTrace, sync: Sync) -> set[Key]:
    """Return parameters that are what they were before the last step, and should not be."""
    before = next((other for other in reversed(trace.syncs[: sync.number - 1]) if other.step < sync.step), None)
    if before is None:
        return set()
    return {
        key
        for key in changed(sync)
        if key in before.manifest and before.manifest[key].digest == sync.manifest[key].digest
    }


@dataclass(frozen=True)
class Gaps:
    """How far the engine is from a cold load by prefill, and by decoding up to where the tokens part, and there.

    trainer: from the trainer; cold: the cold load from the trainer, both by prefill. forced: from the trainer by decoding, None
    where that was not asked.
    """

    prefill: Gap
    decode: Gap
    trainer: Gap
    cold: Gap
    forced: Gap | None


def gaps(scoring: Scoring) -> Gaps:
    """Measure a scoring."""
    here, there = [each.prompt for each in scoring.engine], [each.prompt for each in scoring.cold]
    decoded = [_until_parting(*pair) for pair in zip(scoring.engine, scoring.cold, strict=True)]
    ends = [own[-len(run) :] for own, run in zip(scoring.trainer, scoring.forced, strict=False)]
    return Gaps(
        apart(here, there),
        apart([one for one, _ in decoded], [other for _, other in decoded]),
        apart(here, scoring.trainer),
        apart(there, scoring.trainer),
        apart(scoring.forced, ends) if scoring.forced else None,
    )


def _until_parting(here: Scores, there: Scores) -> tuple[Sequence[float], Sequence[float]]:
    """Cut what was decoded after the first token that differs: what follows another token is no longer the same question."""
    pairs = enumerate(zip(here.decoded, there.decoded, strict=False), 1)
    end = next((place for place, (one, other) in pairs if one != other), None)
    return here.decode[:end], there.decode[:end]
