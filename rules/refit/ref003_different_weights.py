"""The engine holds other weights than a cold load of the trainer's.

## What it checks
After every sync each parameter has, bit for bit, what the same engine has when it is started from the same weights. None is gone or
has come under another name, and none that a cold load keeps readable is empty or packed now. What was not written (REF001,
REF002), what is still of an earlier step (REF004), and what derives from parameters (REF006) are named there.

## Why it matters
The engine samples from another model than the one that is trained. The cause is named where it reproduces what is there.

## How to fix
As the cause says; the converter between the trainer's layout and the engine's is the usual place.

## When it can be wrong
An engine whose loader rounds at random would differ from itself; none is known.

## Seen in
vllm-project/vllm#42821 (gate and up swapped from the second load on), vllm-project/vime#388 (experts permuted)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.phrase import count, few
from ckptcheck.refit.judging import changed, stale
from ckptcheck.refit.names import origin
from ckptcheck.refit.trace import RefitTrace, Sync


@rule(
    "REF003",
    "different-weights",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.manifest for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for sync in trace.syncs:
        lost = list(_lost(trace, sync))
        yield from lost
        if names := sorted({name for _, name in changed(sync) - stale(trace, sync)}):
            causes = [verdict for verdict in sync.verdicts if set(verdict.tensors) & set(names)]
            why = f": {causes[0].sentence}" if causes and "unknown" not in causes[0].causes else f": {few(names)}"
            yield Problem(
                f"after sync {sync.number} {count(len(names), 'tensor differs', 'tensors differ')} from a cold load of the same"
                f" weights{why}{origin(trace, names)}",
                key=names[0],
                hint=causes[0].evidence if causes else None,
            )
        if names or lost:
            return


def _lost(trace: RefitTrace, sync: Sync) -> Iterator[Problem]:
    """Tell of parameters that are not there, or cannot be read, under the names that a cold load has."""
    for found, said, hint in (
        (
            sync.gone,
            "a cold load of the same weights has and this engine has not",
            "find what deleted or renamed it; restart the engine",
        ),
        (
            sync.new,
            "this engine has and a cold load of the same weights has not",
            "find what made it; what is sent goes elsewhere",
        ),
        (sync.hidden, "can be read in a cold load and not here", "find what packed or emptied it; restart the engine"),
    ):
        names = sorted({name for (_, name), entry in found.items() if entry.kind == "parameter"})
        if names:
            why = next(entry.opaque for entry in found.values() if entry.kind == "parameter")
            yield Problem(
                f"after sync {sync.number} there {'is' if len(names) == 1 else 'are'} {count(len(names), 'parameter')} that {said}"
                + (f" ({why})" if found is sync.hidden else "")
                + f": {few(names)}{origin(trace, names)}",
                key=names[0],
                hint=hint,
            )
