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
from ckptcheck.refit.trace import RefitTrace, Sync
from ckptcheck.refit.trace_queries import stale_parameters, wrong_parameters
from ckptcheck.refit.weight_names import describe_origin
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "REF003",
    "different-weights",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.manifest for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for sync in trace.syncs:
        name_problems = list(_compare_names(trace, sync))
        yield from name_problems
        if names := sorted({name for _, name in wrong_parameters(sync) - stale_parameters(trace, sync)}):
            causes = [verdict for verdict in sync.verdicts if set(verdict.tensors) & set(names)]
            is_known = causes and "unknown" not in causes[0].causes
            yield Problem(
                f"after sync {sync.number}, {count(len(names), 'tensor differs', 'tensors differ')} from a cold load of the"
                f" same weights: {causes[0].sentence if is_known else join_truncated(names)}{describe_origin(trace, names)}",
                key=names[0],
                hint=causes[0].evidence if causes else None,
            )
        if names or name_problems:
            return


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
