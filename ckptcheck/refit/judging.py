"""What several rules ask of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite

from ckptcheck.engines.base import Scores
from ckptcheck.refit.apart import Gap, apart
from ckptcheck.refit.names import sources
from ckptcheck.refit.trace import Key, RefitTrace, Scoring, Sync


def changed(sync: Sync) -> set[Key]:
    """Return parameters that differ from the cold load and were written whole."""
    return {
        key for key, (entry, _) in sync.differing.items() if entry.kind == "parameter" and key not in sync.leftovers
    }


def stale(trace: RefitTrace, sync: Sync) -> set[Key]:
    """Return parameters that are what they were before the last step, and should not be."""
    before = _before(trace, sync)
    if before is None:
        return set()
    return {
        key
        for key in changed(sync)
        if key in before.manifest and before.manifest[key].digest == sync.manifest[key].digest
    }


def _before(trace: RefitTrace, sync: Sync) -> Sync | None:
    """Return the last sync before the last step."""
    return next((other for other in reversed(trace.syncs[: sync.number - 1]) if other.step < sync.step), None)


def kept_copies(trace: RefitTrace, sync: Sync) -> set[str]:
    """Return packed copies that lie where they lay before the last step, though what they are made of was sent anew.

    A new one may lie at the place of the old: so only where nothing that can be read is wrong, and logprobs are off.
    """
    before = _before(trace, sync)
    scoring = next((scoring for scoring in trace.scorings if scoring.after == sync.number), None)
    if before is None or scoring is None or sync.wrong or gaps(scoring).most <= trace.floor.loads:
        return set()
    weights = {weight.name: weight for weight in trace.weights}
    moved = {name for name, digest in sync.sent.items() if before.sent.get(name) != digest}
    found: set[str] = set()
    for key, entry in sync.manifest.items():
        old = before.manifest.get(key)
        if entry.kind == "derived" and entry.opaque and entry.place and old is not None and old.place == entry.place:
            modules = accumulate(key[1].split(".")[:-1], lambda parent, own: f"{parent}.{own}")
            made = [each for module in modules for each in sources(f"{module}.weight", weights)]
            if moved.intersection(each.name for each in made):
                found.add(key[1])
    return found


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

    @property
    def most(self) -> float:
        """The largest difference from the cold load."""
        return max(self.prefill.most, self.decode.most)


def rounding_of_inputs(trace: RefitTrace) -> Gap:
    """What it costs that the engine rounds the inputs of its layers too (W8A8, FP8): twice what the cold load shows.

    Nothing where it does not, or where the cold load gives no numbers.
    """
    if trace.trainer is None or "inputs" not in trace.trainer.facts:
        return Gap()
    first = gaps(trace.scorings[0])
    cold = first.trainer | (first.forced or Gap())
    return cold.times(2) if isfinite(cold.most) else Gap()


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
