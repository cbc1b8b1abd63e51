"""What several rules ask of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckptcheck.engines.base import Scores
from ckptcheck.refit.apart import apart
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
    """Largest differences of a scoring, in nats. prefill, decode: from a cold load; decode up to where the tokens part, and there.

    trainer: from the trainer; cold: of the cold load from the trainer.
    """

    prefill: float
    decode: float
    trainer: float
    cold: float


def gaps(scoring: Scoring) -> Gaps:
    """Measure a scoring."""
    pairs = list(zip(scoring.engine, scoring.cold, strict=True))
    return Gaps(
        max((apart(here.prompt, there.prompt) for here, there in pairs), default=0.0),
        max((apart(*_until_parting(here, there)) for here, there in pairs), default=0.0),
        _most(scoring.engine, scoring.trainer),
        _most(scoring.cold, scoring.trainer),
    )


def _most(engine: Sequence[Scores], trainer: Sequence[Sequence[float]]) -> float:
    return max((apart(here.prompt, there) for here, there in zip(engine, trainer, strict=True)), default=0.0)


def _until_parting(here: Scores, there: Scores) -> tuple[Sequence[float], Sequence[float]]:
    """Cut what was decoded after the first token that differs: what follows another token is no longer the same question."""
    pairs = enumerate(zip(here.decoded, there.decoded, strict=False), 1)
    end = next((place for place, (one, other) in pairs if one != other), None)
    return here.decode[:end], there.decode[:end]
