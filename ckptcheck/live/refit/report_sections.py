"""The text and tables of a trial's report: its proof, its measurements, its gaps, and the cost of each sync."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckptcheck.linter.report import Section
from ckptcheck.live.refit.module_errors import RATIO
from ckptcheck.live.refit.observations import Observations, Sync
from ckptcheck.live.refit.trace_queries import compare_scoring, input_rounding_tolerance, why_not_scrambled
from ckptcheck.live.runtime.engines.capabilities import why_not_forced
from ckptcheck.text.formatting import count, format_bytes, join_truncated, join_words

HIDING_MEAN = 1e-3
"""Tolerance in nats, on average, above which the report says what it could hide."""


def proof_sections(trace: Observations) -> Iterator[Section]:
    """Yield what the trial proved, in one sentence, if nothing is wrong."""
    if proof := describe_proof(trace):
        yield Section("what this trial proved", lines=(proof,))


def describe_proof(trace: Observations) -> str:
    """Return what the trial proved as one sentence; "" if anything is wrong, unproved or unfinished."""
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


def summarize_proof(trace: Observations) -> str:
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


def _has_empty_step(trace: Observations) -> bool:
    """Whether a step changed nothing that the trainer exports: the syncs after it then prove nothing."""
    sent = {sync.step: sync.sent for sync in trace.syncs}
    return any(sent.get(step - 1) == now for step, now in sent.items())


def _describe_equality(syncs: list[Sync]) -> str:
    """Say how many tensors are bit for bit those of a cold load after every sync."""
    read, total = _count_equal(syncs)
    after = "after the sync" if len(syncs) == 1 else f"after each of {count(len(syncs), 'sync')}"
    rest = "" if read == total else f" ({total - read:,} cannot be read)"
    return f"{after}, {read:,} of {total:,} tensors equal a cold load of the same weights bit for bit{rest}"


def _describe_experts(trace: Observations) -> list[str]:
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
    """Return how many tensors were readable on both sides after every sync, and how many there are."""
    read = min(
        sum(
            not entry.opaque and (own := sync.manifest.get(key)) is not None and not own.opaque
            for key, entry in sync.reference.items()
        )
        for sync in syncs
    )
    return read, max(len(sync.reference) for sync in syncs)


def _describe_marks(trace: Observations, syncs: list[Sync]) -> list[str]:
    """Say that the syncs overwrote all marks; [] for a trial without marks."""
    marked = [sync.number for sync in syncs if sync.was_marked]
    if not marked or why_not_scrambled(trace):
        return []
    which = f"sync {marked[0]}" if len(marked) == 1 else f"syncs {join_words([str(number) for number in marked])}"
    return [f"marks show that {which} wrote all of the {len(trace.scrambled.names):,} that could be marked"]


def _is_within_floor(trace: Observations, number: int) -> bool:
    """Whether a scoring is within the floor: of the cold load, and of the trainer."""
    scoring = trace.scorings[number]
    diffs = compare_scoring(scoring)
    tolerance = trace.noise_floor.trainer_tolerance | input_rounding_tolerance(trace)
    is_cold = not scoring.after_sync or diffs.most <= trace.noise_floor.cold_load_tolerance
    return is_cold and diffs.trainer.within(tolerance)


def identity_sections(trace: Observations) -> Iterator[Section]:
    """Yield the identities of the weights of trainer and engine after each sync; nothing without identities."""
    if not trace.trainer_identities:
        return
    gap = trace.identity_gaps.get("engine", "")
    rows = [
        (
            sync.number,
            sync.step,
            trace.trainer_identities.get(sync.step),
            None if gap else trace.engine_identities.get(sync.number),
        )
        for sync in trace.syncs
    ]
    others = [number for number, _, trainer, engine in rows if trainer and engine and trainer != engine]
    equal = sum(trainer is not None and trainer == engine for _, _, trainer, engine in rows)
    if gap:
        summary = f"the engine's weights have no identity to compare: {gap}"
    elif others:
        summary = f"after sync {', '.join(map(str, others))} the engine holds another set of weights than the trainer"
    else:
        summary = f"after {count(equal, 'sync')} the engine holds the trainer's set of weights, named by its content"
    yield Section("identity of the weights", ("sync", "step", "trainer", "engine"), tuple(rows), brief=(summary,))


def measurement_sections(trace: Observations) -> Iterator[Section]:
    """Yield the tables of what the trial measured: logprobs and their noise floor, steps, greedy text. Empty ones are left out."""
    if trace.ignored_options:
        lines = tuple(f"{name}: {reason}" for name, reason in trace.ignored_options.items())
        yield Section("switches that the engine did not take, and that this trial did not test", lines=lines)
    if trace.scorings and trace.engine and trace.trainer:
        noise_by_side = ((trace.engine.name, trace.noise_floor.engine), (trace.trainer.name, trace.noise_floor.trainer))
        not_forced_reason = why_not_forced(trace.engine)
        floor = [
            (name, comparison, gap.most, gap.mean)
            for name, noise in noise_by_side
            for comparison, gap in (
                ("asked again", noise.repeat),
                ("each sequence alone", noise.batch),
                ("by decoding", noise.decode if noise is trace.noise_floor.engine else None),
                ("weights moved by their last place", noise.rounding),
            )
            if gap is not None
        ]
        yield Section(
            "the floor: how far each side is from itself over the same weights (nats)",
            ("side", "", "most", "mean"),
            tuple(floor),
            _hidden_by_floor(trace),
        )
        rows = []
        for scoring in trace.scorings:
            diffs = compare_scoring(scoring)
            step = trace.syncs[scoring.after_sync - 1].step if scoring.after_sync else 0
            cold = (diffs.prefill.most, diffs.decode.most) if scoring.after_sync else (None, None)
            sync_label = f"sync {scoring.after_sync}" if scoring.after_sync else "cold load"
            forced = (diffs.forced.most, diffs.forced.mean) if diffs.forced else (None, None)
            rows.append((sync_label, step, *cold, diffs.trainer.most, diffs.trainer.mean, *forced))
        allowed = trace.noise_floor.trainer_tolerance
        limits = (allowed.most, allowed.mean)
        rows.append(
            (
                "allowed",
                None,
                trace.noise_floor.cold_load_tolerance,
                trace.noise_floor.cold_load_tolerance,
                *limits,
                *limits,
            )
        )
        yield Section(
            "logprobs: how far the engine is from a cold load, and from the trainer (nats)",
            ("after", "step", "cold load: prefill", "decoding", "trainer: most", "mean", "decoding: most", "mean"),
            tuple(rows),
            (f"the trainer's tokens were not decoded: {not_forced_reason}",) if not_forced_reason else (),
        )
    if trace.acceptances:
        yield Section(
            "acceptance length: tokens per decode step with the draft model (1: none of its tokens is accepted)",
            ("after", "engine", "cold load of the same weights"),
            tuple(
                (f"sync {each.after_sync}" if each.after_sync else "cold load", each.engine, each.cold)
                for each in trace.acceptances
            ),
            (
                f"the trainer does not hold {count(len(trace.untrained), 'tensor')} of the draft model: they stay as in SOURCE",
            )
            if trace.untrained
            else (),
        )
    if trace.steps:
        yield Section(
            "optimizer steps",
            ("step", "loss", "gradient norm", "parameters left as they were"),
            tuple(
                (number, step.loss, step.grad_norm, len(step.unchanged)) for number, step in enumerate(trace.steps, 1)
            ),
        )
    if text_lines := tuple(_greedy_text_lines(trace)):
        yield Section("greedy text of the engine; the trainer's where it is another", lines=text_lines)


def _hidden_by_floor(trace: Observations) -> tuple[str, ...]:
    """Return what faults a high noise floor can hide between trainer and engine; () if the floor is low."""
    allowed = trace.noise_floor.trainer_tolerance
    if allowed.mean <= HIDING_MEAN:
        return ()
    begin = f"trainer and engine may differ by {allowed.mean:.2g} nats on average within the noise floor"
    if trace.module_errors is not None:
        shared = trace.module_errors.engine.keys() & trace.module_errors.trainer.keys()
        return (
            f"{begin}; {len(shared):,} module outputs were compared with float32 too (REF043): an error that they do not show"
            f" is below {RATIO:.0f} times the rounding of this dtype, or occurs in decoding alone",
        )
    reason = f" ({trace.module_errors_skipped})" if trace.module_errors_skipped else ""
    return (
        f"{begin}, and modules were not compared with float32{reason}: a head or a router in another dtype can hide there; run the"
        " trial with --dtype float32, or ckptcheck parity probe and localize, to see it",
    )


def _greedy_text_lines(trace: Observations) -> Iterator[str]:
    for scoring in trace.scorings:
        if (greedy := scoring.greedy_text) is None:
            continue
        sync_label = f"sync {scoring.after_sync}" if scoring.after_sync else "cold load"
        for side, text, ids in (
            ("", greedy.engine_text, greedy.engine),
            ("  trainer", greedy.trainer_text, greedy.trainer if greedy.first_divergence is not None else ()),
        ):
            if ids:
                yield f"{sync_label}{side}: {text!r}" if text else f"{sync_label}{side}: {' '.join(map(str, ids))}"


LEFT_OUT = (
    "the engine decoded nothing: a fault of decoding alone (a decode kernel, a captured graph) does not show",
    "REF010 and REF012 compare logprobs by prefill only; REF017, which compares greedy text, does not run",
)


def coverage_sections(trace: Observations) -> Iterator[Section]:
    """Yield what the trial did not cover: checks that --fast skips, tensors without marks, syncs without a diagnosis."""
    if trace.is_fast:
        yield Section("left out by --fast", lines=LEFT_OUT)
    reasons: dict[str, dict[str, None]] = {}
    for (_, name), reason in trace.scrambled.skipped.items():
        reasons.setdefault(reason, {})[name] = None
    if reasons:
        yield Section(
            "not overwritten before the first sync: that a sync writes these shows only in the comparison with a cold load",
            ("why", "tensors", "which"),
            tuple((reason, len(names), ", ".join(names)) for reason, names in reasons.items()),
            brief=tuple(
                f"{count(len(names), 'tensor')}: {join_truncated(list(names))} ({reason})"
                for reason, names in reasons.items()
            ),
        )
    if trace.source_comparison is not None and (skipped := trace.source_comparison.skipped):
        first, reason = next(iter(skipped.items()))
        yield Section(
            "exported, and not compared with SOURCE",
            lines=(f"{len(skipped):,} of {len(trace.weights):,} tensors: {first} ({reason})",),
        )
    if lines := tuple(
        f"sync {sync.number}: {sync.no_diagnosis_reason}" for sync in trace.syncs if sync.no_diagnosis_reason
    ):
        yield Section("causes that were not looked for", lines=lines)


COST_COLUMNS = ("sync", "step", "sent", "buckets", "sync s", "update s", "check s", "check / sync", "sent digests s")


def cost_sections(syncs: Sequence[Sync]) -> tuple[Section, ...]:
    """Return the table of what syncs and their checks cost, () if nothing was checked.

    sync s: export and update, as in a job. Only the first sync after a step runs at vLLM's own speed; in the others the trial fills
    newly allocated memory (trial_syncs.py). update s: the engine's share. check s: one pass of digests over the engine's tensors,
    and the comparison with the cold load. sent digests s: the same pass on the trainer.
    """
    rows = [
        (
            sync.number,
            sync.step,
            format_bytes(sync.nbytes),
            sync.buckets,
            sync.seconds,
            sync.answer.seconds,
            sync.check_seconds,
            sync.check_seconds / sync.seconds if sync.seconds else None,
            sync.sent_seconds,
        )
        for sync in syncs
        if sync.manifest
    ]
    return (Section("cost of the syncs, and of checking them", COST_COLUMNS, tuple(rows)),) if rows else ()
