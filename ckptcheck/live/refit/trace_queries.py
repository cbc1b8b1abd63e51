"""Questions that several rules ask of a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite

from ckptcheck.live.refit.logprob_diff import LogprobDiff, compare_logprobs
from ckptcheck.live.refit.module_errors import describe_module
from ckptcheck.live.refit.observations import Key, Observations, Scoring, Sync, is_draft
from ckptcheck.live.refit.weight_names import trainer_weights
from ckptcheck.live.runtime.engines.base import HostScalars, SequenceScores, UnwrittenElements, same_number
from ckptcheck.text.formatting import count, join_truncated


def wrong_parameters(sync: Sync) -> set[Key]:
    """Return the parameters of the served model that the sync wrote whole and that differ from the reference."""
    return {
        key
        for key, (entry, _) in sync.differing_tensors.items()
        if entry.kind == "parameter" and key not in sync.unwritten_parts and not is_draft(key[1])
    }


def stale_parameters(trace: Observations, sync: Sync) -> set[Key]:
    """Return the parameters that still have the right values from before the last step, although the reference differs."""
    before = _sync_before_step(trace, sync)
    if before is None:
        return set()
    return {key for key in _unchanged_parameters(before, sync) if key not in before.differing_tensors}


def still_wrong_parameters(trace: Observations, sync: Sync) -> set[Key]:
    """Return the parameters that were wrong before the last step and have not changed: an earlier finding has them."""
    before = _sync_before_step(trace, sync)
    if before is None:
        return set()
    return {key for key in _unchanged_parameters(before, sync) if key in before.differing_tensors}


def _unchanged_parameters(before: Sync, sync: Sync) -> set[Key]:
    """Return the wrong parameters that hold what they held after an earlier sync."""
    return {
        key
        for key in wrong_parameters(sync)
        if key in before.manifest and before.manifest[key].digest == sync.manifest[key].digest
    }


def iter_unwritten_parts(trace: Observations) -> Iterator[tuple[Sync, dict[Key, UnwrittenElements]]]:
    """Yield each sync with the tensors of the served model in which it left marks.

    A tensor comes once: no later sync has it again, and none at all if an earlier sync left it wrong or stale (REF003, REF004).
    """
    known: set[Key] = set()
    for sync in trace.syncs:
        yield (
            sync,
            {key: part for key, part in sync.unwritten_parts.items() if key not in known and not is_draft(key[1])},
        )
        known |= sync.unwritten_parts.keys() | wrong_parameters(sync)


def _sync_before_step(trace: Observations, sync: Sync) -> Sync | None:
    """Return the last sync before the last step."""
    return next((other for other in reversed(trace.syncs[: sync.number - 1]) if other.step < sync.step), None)


def stale_packed_copies(trace: Observations, sync: Sync) -> set[str]:
    """Return packed copies that kept their address since the last step, although the weights behind them changed.

    A new copy may get the address of the old one. So the result is empty unless every readable tensor is right and the
    logprobs are off.
    """
    before = _sync_before_step(trace, sync)
    scoring = next((scoring for scoring in trace.scorings if scoring.after_sync == sync.number), None)
    if (
        before is None
        or scoring is None
        or sync.has_wrong_parameter
        or compare_scoring(scoring).most <= trace.noise_floor.cold_load_tolerance
    ):
        return set()
    weights = {weight.name: weight for weight in trace.weights}
    changed_weights = {name for name, digest in sync.sent.items() if before.sent.get(name) != digest}
    stale: set[str] = set()
    for key, entry in sync.manifest.items():
        old = before.manifest.get(key)
        if (
            entry.kind == "derived"
            and entry.opaque
            and entry.storage
            and old is not None
            and old.storage == entry.storage
        ):
            modules = accumulate(key[1].split(".")[:-1], lambda parent, part: f"{parent}.{part}")
            sources = [source for module in modules for source in trainer_weights(f"{module}.weight", weights)]
            if changed_weights.intersection(source.name for source in sources):
                stale.add(key[1])
    return stale


def differing_scalars(trace: Observations, sync: Sync) -> dict[Key, tuple[float | None, float]]:
    """Return the numbers on the host that differ from those of a cold load, as (engine, cold load).

    The engine's is None where it has lost the number. An integer counts only if it also changed since the engine's own start:
    other processes may have others, and what depends on weights is a float.
    """
    was_used = any(scoring.after_sync == sync.number for scoring in trace.scorings)
    found: dict[Key, tuple[float | None, float]] = {}
    for key, cold in sync.reference_scalars.items():
        value = sync.scalars.get(key)
        if same_number(cold, value) or (value is None and not was_used):
            continue
        if isinstance(cold, int) and (value is None or same_number(value, trace.cold_scalars.get(key))):
            continue
        found[key] = value, cold
    return found


def scalars_before_step(trace: Observations, sync: Sync) -> HostScalars:
    """Return the numbers on the host that the engine had before the last step; {} without a step."""
    before = _sync_before_step(trace, sync)
    return {} if before is None else before.scalars


@dataclass(frozen=True)
class ScoringDiffs:
    """The differences between the logprobs of one scoring."""

    prefill: LogprobDiff
    """Engine and cold load, by prefill."""
    decode: LogprobDiff
    """Engine and cold load, by decoding, up to and including the first token that differs."""
    trainer: LogprobDiff
    """Engine and trainer, by prefill."""
    cold: LogprobDiff
    """Cold load and trainer, by prefill."""
    forced: LogprobDiff | None
    """Engine and trainer, where the engine decodes given tokens; None if it cannot."""

    @property
    def most(self) -> float:
        """The largest difference from the cold load."""
        return max(self.prefill.most, self.decode.most)


def input_rounding_tolerance(trace: Observations) -> LogprobDiff:
    """Return the tolerance for an engine that also rounds the inputs of its layers (W8A8, FP8).

    It is twice the difference that the cold load shows; 0 for other engines, and if that difference is not finite.
    """
    if trace.trainer is None or "inputs" not in trace.trainer.facts:
        return LogprobDiff()
    first = compare_scoring(trace.scorings[0])
    cold = first.trainer | (first.forced or LogprobDiff())
    return cold.times(2) if isfinite(cold.most) else LogprobDiff()


def compare_scoring(scoring: Scoring) -> ScoringDiffs:
    """Compare the logprobs of engine, cold load and trainer in one scoring."""
    engine, cold = (
        [scores.prompt_logprobs for scores in scoring.engine],
        [scores.prompt_logprobs for scores in scoring.cold],
    )
    decoded = [_cut_at_divergence(*pair) for pair in zip(scoring.engine, scoring.cold, strict=True)]
    ends = [
        trainer_logprobs[-len(decoded_run) :]
        for trainer_logprobs, decoded_run in zip(scoring.trainer, scoring.forced_decode, strict=False)
    ]
    return ScoringDiffs(
        compare_logprobs(engine, cold),
        compare_logprobs([one for one, _ in decoded], [other for _, other in decoded]),
        compare_logprobs(engine, scoring.trainer),
        compare_logprobs(cold, scoring.trainer),
        compare_logprobs(scoring.forced_decode, ends) if scoring.forced_decode else None,
    )


def suspect_steps(syncs: Sequence[Sync], scorings: Sequence[Scoring], tolerance: LogprobDiff) -> set[int]:
    """Return the steps after which the engine's weights differ from a cold load, or its logprobs from the trainer's."""
    steps = {sync.step for sync in syncs if sync.has_wrong_parameter}
    for scoring in scorings:
        if scoring.after_sync and not compare_scoring(scoring).trainer.within(tolerance):
            steps.add(syncs[scoring.after_sync - 1].step)
    return steps


def misexported_weights(trace: Observations) -> set[str]:
    """Return the weights whose export or saved file differs from what the trainer's ranks hold, or from SOURCE."""
    source = trace.source_comparison
    wrong = {part.shard.name for each in trace.export_comparisons for part in each.wrong}
    saved = {name for each in trace.export_comparisons for name in each.saved_differently}
    return wrong | saved | set(source.differing if source is not None else ())


HIDING = 1e-3
"""Nats below which two float32 sides differ by rounding alone."""


def may_hide_difference(trace: Observations) -> bool:
    """Whether the last sync is right, but trainer and engine differ, or could differ by less than the noise floor."""
    sync, engine, trainer = trace.syncs[-1] if trace.syncs else None, trace.engine, trace.trainer
    if sync is None or engine is None or trainer is None or sync.has_wrong_parameter or sync.has_unwritten_parameter:
        return False
    if any(each.wrong for each in trace.export_comparisons):
        return False
    is_narrow = {engine.dtype, trainer.dtype} != {"float32"}
    last = trace.scorings[-1] if trace.scorings else None
    return is_narrow or (last is not None and not compare_scoring(last).trainer.most <= HIDING)


def describe_off_module(trace: Observations) -> str | None:
    """Say which side is off from float32, and in which module first; None if the trial found neither side off."""
    errors = trace.module_errors
    if errors is None or not errors.module or trace.engine is None or trace.trainer is None:
        return None
    return describe_module(errors, {"engine": trace.engine.name, "trainer": trace.trainer.name})


def wrong_references(trace: Observations, sync: Sync) -> set[Key]:
    """Return the engine's tensors whose reference is wrong: the cold load read them from a file that differs from the export."""
    saved = {name for each in trace.export_comparisons if each.step == sync.step for name in each.saved_differently}
    weights = {weight.name: weight for weight in trace.weights}
    return {
        key for key in sync.manifest if saved and saved & {source.name for source in trainer_weights(key[1], weights)}
    }


def _cut_at_divergence(engine: SequenceScores, cold: SequenceScores) -> tuple[Sequence[float], Sequence[float]]:
    """Return the decoded logprobs up to and including the first token that differs: after it, the contexts differ."""
    pairs = enumerate(zip(engine.decoded_tokens, cold.decoded_tokens, strict=False), 1)
    end = next((place for place, (token, cold_token) in pairs if token != cold_token), None)
    return engine.decode_logprobs[:end], cold.decode_logprobs[:end]


def why_not_scrambled(trace: Observations) -> str:
    """Return why marks cannot show which parameters the first sync wrote; "" if they can."""
    scrambled = sorted(
        key
        for key in trace.scrambled.names
        if key in trace.cold_manifest and trace.cold_manifest[key].kind == "parameter"
    )
    if not scrambled:
        reason = next(iter(trace.scrambled.skipped.values()), "the engine names none")
        return f"no parameter could be overwritten with marks before the first sync: {reason}"
    unchanged = sorted({key[1] for key in scrambled if _is_unchanged_by_scramble(trace, key)})
    if not unchanged:
        return ""
    return f"overwriting did not change {count(len(unchanged), 'parameter')}: {join_truncated(unchanged)}"


def modified_buffers(trace: Observations) -> set[Key]:
    """Return the buffers that changed when the trial overwrote the parameters with marks, before any sync."""
    return {
        key
        for key, entry in trace.cold_manifest.items()
        if entry.kind == "buffer"
        and (scrambled := trace.scrambled_manifest.get(key)) is not None
        and scrambled.digest != entry.digest
    }


def _is_unchanged_by_scramble(trace: Observations, key: Key) -> bool:
    cold, scrambled = trace.cold_manifest[key], trace.scrambled_manifest.get(key)
    return scrambled is not None and bool(cold.digest) and scrambled.digest == cold.digest
