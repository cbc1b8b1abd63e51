"""The engine holds other weights than a cold load of the trainer's.

## What it checks
After every sync each parameter has, bit for bit, what the same engine has when it is started from the same weights. What was
not written (REF001, REF002), what is still of an earlier step (REF004), and what derives from parameters (REF006) are named there.

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
from ckptcheck.refit.trace import RefitTrace


@rule(
    "REF003",
    "different-weights",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.manifest for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for sync in trace.syncs:
        left = changed(sync) - stale(trace, sync)
        if not left:
            continue
        names = sorted({name for _, name in left})
        causes = [verdict for verdict in sync.verdicts if set(verdict.tensors) & set(names)]
        why = f": {causes[0].sentence}" if causes and "unknown" not in causes[0].causes else f": {few(names)}"
        yield Problem(
            f"after sync {sync.number} {count(len(names), 'tensor differs', 'tensors differ')} from a cold load of the same"
            f" weights{why}{origin(trace, names)}",
            key=names[0],
            hint=causes[0].evidence if causes else None,
        )
        return
