"""Says in one sentence what a trial proved."""

from __future__ import annotations

from ckptcheck.live.refit.trace import RefitTrace, Sync
from ckptcheck.live.refit.trace_queries import compare_scoring, input_rounding_tolerance, why_not_scrambled
from ckptcheck.text.formatting import count, join_words


def describe_proof(trace: RefitTrace) -> str:
    """Return what the trial proved as one sentence, "" where something is wrong, is unproved, or did not finish."""
    if trace.failed_phases or not trace.syncs:
        return ""
    source = trace.source_comparison
    if _has_empty_step(trace) or (
        source is not None and (source.differing or set(source.missing) - set(trace.sent_draft))
    ):
        return ""
    compared = [sync for sync in trace.syncs if sync.manifest]
    if any(
        sync.differing_tensors
        or sync.missing_tensors
        or sync.extra_tensors
        or sync.unreadable_tensors
        or sync.unwritten_parts
        or sync.wrong_slots
        for sync in trace.syncs
    ):
        return ""
    clauses = []
    if compared:
        clauses += [_describe_equality(compared), *_describe_marks(trace, compared), *_describe_experts(trace)]
    if source is not None and source.compared:
        clauses.append(f"before any step the trainer exported {count(source.compared, 'tensor')} as SOURCE has them")
    if not trace.scorings:
        return "; ".join(clauses)
    if not all(_is_within_floor(trace, number) for number in range(len(trace.scorings))):
        return ""
    most = max((compare_scoring(scoring).most for scoring in trace.scorings if scoring.after_sync), default=0.0)
    trainer = max(compare_scoring(scoring).trainer.most for scoring in trace.scorings)
    cold = f"within {most:.2g} nats of the cold load's" if most else "those of the cold load"
    which = "logprobs by prefill" if trace.is_fast else "logprobs"
    clauses.append(f"{which} are {cold}, and within {trainer:.2g} nats of the trainer's, which is under the floor")
    return "; ".join(clauses)


def summarize_proof(trace: RefitTrace) -> str:
    """Return what the trial proved in a few words, "" where `describe_proof` has nothing to say."""
    if not describe_proof(trace):
        return ""
    parts = []
    if compared := [sync for sync in trace.syncs if sync.manifest]:
        read, total = _count_equal(compared)
        parts.append(f"{read:,} of {total:,} tensors equal bit for bit after {count(len(compared), 'sync')}")
    if trace.scorings:
        parts.append("logprobs within the floor")
    return ", ".join(parts)


def _has_empty_step(trace: RefitTrace) -> bool:
    """Whether a step changed nothing that the trainer exports: the syncs after it then prove nothing."""
    sent = {sync.step: sync.sent for sync in trace.syncs}
    return any(sent.get(step - 1) == now for step, now in sent.items())


def _describe_equality(syncs: list[Sync]) -> str:
    """Say of how many tensors every sync left the bits of a cold load."""
    read, total = _count_equal(syncs)
    after = "after the sync" if len(syncs) == 1 else f"after each of {count(len(syncs), 'sync')}"
    rest = "" if read == total else f" ({total - read:,} cannot be read)"
    return f"{after}, {read:,} of {total:,} tensors equal a cold load of the same weights bit for bit{rest}"


def _describe_experts(trace: RefitTrace) -> list[str]:
    """Say that every copy of an expert is right, before and after they were moved; [] without copies."""
    move = trace.expert_move
    if move is None:
        return []
    if move.wrong:
        return []
    slots = max(sync.slots for sync in trace.syncs)
    moved = f", {move.moved:,} of them moved between two syncs" if move.moved else ""
    return [f"{count(slots, 'slot')} for experts hold the expert of the engine's map{moved}"]


def _count_equal(syncs: list[Sync]) -> tuple[int, int]:
    """Return of how many tensors both sides could be read after every sync, and how many there are."""
    read = min(
        sum(
            not entry.opaque and (own := sync.manifest.get(key)) is not None and not own.opaque
            for key, entry in sync.reference.items()
        )
        for sync in syncs
    )
    return read, max(len(sync.reference) for sync in syncs)


def _describe_marks(trace: RefitTrace, syncs: list[Sync]) -> list[str]:
    """Say that marks show what was written; [] where no marks could."""
    marked = [sync.number for sync in syncs if sync.was_marked]
    if not marked or why_not_scrambled(trace):
        return []
    which = f"sync {marked[0]}" if len(marked) == 1 else f"syncs {join_words([str(number) for number in marked])}"
    return [f"marks show that {which} wrote all of the {len(trace.scrambled.names):,} that could be marked"]


def _is_within_floor(trace: RefitTrace, number: int) -> bool:
    """Whether a scoring is within the floor: of the cold load, and of the trainer."""
    scoring = trace.scorings[number]
    diffs = compare_scoring(scoring)
    tolerance = trace.noise_floor.trainer_tolerance | input_rounding_tolerance(trace)
    is_cold = not scoring.after_sync or diffs.most <= trace.noise_floor.cold_load_tolerance
    return is_cold and diffs.trainer.within(tolerance)
