"""The engine's weights differ from a cold load of the trainer's weights.

## What it checks
- The reference is the same engine, started from the same weights (a cold load).
- After every sync, each parameter equals the reference bit for bit.
- No parameter of the reference is missing in the engine, and the engine has none under another name.
- A parameter that can be read in the reference can be read in the engine: it is neither empty nor packed.
- Other rules report their own cases: unwritten parameters (REF001, REF002), parameters of an earlier step (REF004),
  and tensors that the engine derives from parameters (REF006).

## Why it matters
- The engine samples from another model than the one that is trained.
- The message names a cause when applying that cause to the reference gives exactly what the engine holds.

## How to fix
- Follow the cause in the message. The usual place is the converter between the trainer's layout and the engine's.

## When it can be wrong
- An engine whose loader rounds at random would differ from itself. We know of none.

## Seen in
vllm-project/vllm#42821 (gate and up swapped from the second load on), vllm-project/vime#388 (experts permuted)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.refit.trace import Key, RefitTrace, Sync
from ckptcheck.refit.trace_queries import stale_parameters, wrong_parameters
from ckptcheck.refit.weight_names import describe_origin, describe_part_origin, describe_ranks
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
        # what an earlier sync got wrong is not told again: a later one may have another fault
        wrong = wrong_parameters(sync) - stale_parameters(trace, sync) - reported
        reported |= wrong
        yield from _describe_causes(trace, sync, wrong)


def _describe_causes(trace: RefitTrace, sync: Sync, wrong: set[Key]) -> Iterator[Problem]:
    """Yield a problem for each cause, and one for the tensors of which the cause is not known."""
    names = {name for _, name in wrong}
    explained: set[str] = set()
    for verdict in sync.verdicts:
        # the diagnosis looks at each expert of a stacked tensor by itself: name[5]
        parts = [part for name in verdict.tensors if (part := name.partition("[")[0]) in sync.engine_names]
        found = sorted({sync.engine_names[part] for part in parts} & names)
        if not found or "unknown" in verdict.causes:
            continue
        explained.update(found)
        yield Problem(
            f"after sync {sync.number}, {count(len(found), 'tensor differs', 'tensors differ')} from a cold load of the"
            f" same weights: {verdict.sentence}{describe_part_origin(trace, parts, found)}"
            + describe_ranks(trace, (key for key in wrong if key[1] in found)),
            key=found[0],
            hint=verdict.evidence,
        )
    if rest := sorted(names - explained):
        unknown = next((verdict for verdict in sync.verdicts if "unknown" in verdict.causes), None)
        yield Problem(
            f"after sync {sync.number}, {count(len(rest), 'tensor differs', 'tensors differ')} from a cold load of the"
            f" same weights: {join_truncated(rest)}{describe_origin(trace, rest)}"
            + describe_ranks(trace, (key for key in wrong if key[1] in rest)),
            key=rest[0],
            hint=unknown.evidence if unknown is not None else None,
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
        names = sorted({name for (_, name), entry in entries.items() if entry.kind == "parameter"})
        if names:
            reason = next(entry.opaque for entry in entries.values() if entry.kind == "parameter")
            yield Problem(
                f"after sync {sync.number}, {description.format(count(len(names), 'parameter'))}"
                + (f" ({reason})" if entries is sync.unreadable_tensors else "")
                + f": {join_truncated(names)}{describe_origin(trace, names)}",
                key=names[0],
                hint=hint,
            )
