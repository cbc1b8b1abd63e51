"""The engine's weights differ from a cold load of the trainer's weights.

## What it checks
- The reference is the same engine, started from the same weights (a cold load).
- After every sync, each parameter equals the reference bit for bit.
- No parameter of the reference is missing in the engine, and the engine has none under another name.
- A parameter that can be read in the reference can be read in the engine: it is neither empty nor packed.
- Other rules report their own cases: unwritten parameters (REF001), parameters of an earlier step (REF004),
  tensors that the engine derives from parameters (REF005), and a cold load from a wrong checkpoint (REF037).

## Why it matters
- The engine samples from another model than the one that is trained.
- The message names a cause when applying that cause to the reference gives exactly what the engine holds.

## How to fix
- Follow the cause in the message. The usual place is the converter between the trainer's layout and the engine's.
- The message says whether what was sent arrived unchanged at the engine's `load_weights`: if so, look at the engine's
  loader; if not, at the transport.

## When it can be wrong
- An engine whose loader rounds at random would differ from itself. We know of none.

## Seen in
vllm-project/vllm#42821 (gate and up swapped from the second load on), vllm-project/vime#388 (experts permuted)
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.live.refit.delivery import describe_arrival, describe_misplaced, find_misplaced
from ckptcheck.live.refit.observations import Key, Sync, is_draft
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trace_queries import (
    stale_parameters,
    still_wrong_parameters,
    wrong_parameters,
    wrong_references,
)
from ckptcheck.live.refit.weight_names import describe_origin, describe_part_origin, describe_ranks
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "REF003",
    "different-weights",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.manifest for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    reported: set[Key] = set()
    are_names_reported = False
    for sync in trace.syncs:
        if not are_names_reported:
            name_problems = list(_compare_names(trace, sync))
            yield from name_problems
            are_names_reported = bool(name_problems)
        # an earlier finding has what an earlier sync got wrong: a later sync may have another fault
        other_findings = stale_parameters(trace, sync) | wrong_references(trace, sync)
        wrong = wrong_parameters(sync) - other_findings - still_wrong_parameters(trace, sync) - reported
        reported |= wrong
        yield from _describe_causes(trace, sync, wrong)


def _describe_causes(trace: RefitTrace, sync: Sync, wrong: set[Key]) -> Iterator[Problem]:
    """Yield a problem for each known cause, and one for the rest of the tensors."""
    explained: set[Key] = set()
    # one problem for all ranks with the same cause: cause → ranks
    ranks_by_cause: dict[tuple[str, str, tuple[str, ...], tuple[str, ...]], list[int]] = {}
    for diagnosis in sync.diagnoses:
        names = {name for rank, name in wrong if rank == diagnosis.rank}
        for verdict in diagnosis.verdicts:
            # the diagnosis looks at each expert of a stacked tensor by itself: name[5]
            parts = [part for name in verdict.tensors if (part := name.partition("[")[0]) in diagnosis.engine_names]
            found = sorted({diagnosis.engine_names[part] for part in parts} & names)
            if not found or "unknown" in verdict.causes:
                continue
            explained |= {(diagnosis.rank, name) for name in found}
            key = (verdict.sentence, verdict.evidence, tuple(parts), tuple(found))
            ranks_by_cause.setdefault(key, []).append(diagnosis.rank)
    for (sentence, evidence, parts_of_all, found_of_all), ranks in ranks_by_cause.items():
        keys = {(rank, name) for rank in ranks for name in found_of_all}
        what = f"{sentence}{describe_part_origin(trace, parts_of_all, found_of_all)}"
        yield _describe(trace, sync, keys, what, evidence, parts=parts_of_all)
    if misplaced := find_misplaced(sync, wrong - explained):
        explained |= misplaced.keys()
        what = f"{describe_misplaced(misplaced)}{describe_origin(trace, sorted({name for _, name in misplaced}))}"
        hint = "find where the two names, or the two places in a buffer, are confused; a digest of the whole tensor shows it"
        yield _describe(trace, sync, set(misplaced), what, hint)
    if rest := wrong - explained:
        engine_names = sorted({name for _, name in rest})
        what = f"{join_truncated(engine_names)}{describe_origin(trace, engine_names)}"
        unknown = next(
            (verdict for each in sync.diagnoses for verdict in each.verdicts if "unknown" in verdict.causes), None
        )
        note = "; no known cause gives what the engine holds" if unknown is not None else ""
        yield _describe(trace, sync, rest, what, unknown.evidence if unknown is not None else None, note=note)


def _describe(
    trace: RefitTrace,
    sync: Sync,
    keys: set[Key],
    what: str,
    hint: str | None,
    *,
    parts: Sequence[str] = (),
    note: str = "",
) -> Problem:
    names = sorted({name for _, name in keys})
    return Problem(
        f"after sync {sync.number}, {count(len(names), 'tensor differs', 'tensors differ')} from a cold load of the same weights:"
        f" {what}{describe_ranks(trace, keys)}{note}{describe_arrival(trace, sync, keys, parts)}",
        key=names[0],
        hint=hint,
        names=tuple(names),
    )


def _compare_names(trace: RefitTrace, sync: Sync) -> Iterator[Problem]:
    """Yield a problem for parameters that exist or can be read only in the engine, or only in a cold load."""
    for entries, description, hint in (
        (
            sync.missing_tensors,
            "the engine lacks {} that a cold load of the same weights has",
            "find what deleted or renamed it; restart the engine",
        ),
        (
            sync.extra_tensors,
            "the engine has {} that a cold load of the same weights does not have",
            "find what created it: the values that it holds were sent for another parameter",
        ),
        (
            sync.unreadable_tensors,
            "{} cannot be read that a cold load keeps readable",
            "find what packed or emptied it; restart the engine",
        ),
    ):
        names = sorted(
            {name for (_, name), entry in entries.items() if entry.kind == "parameter" and not is_draft(name)}
        )
        if names:
            reason = next(entry.opaque for entry in entries.values() if entry.name in names)
            yield Problem(
                f"after sync {sync.number}, {description.format(count(len(names), 'parameter'))}"
                + (f" ({reason})" if entries is sync.unreadable_tensors else "")
                + f": {join_truncated(names)}{describe_origin(trace, names)}",
                key=names[0],
                hint=hint,
                names=tuple(names),
            )
