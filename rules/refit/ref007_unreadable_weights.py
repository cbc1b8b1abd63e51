"""The engine computes with a copy of its weights that nobody can read.

## What it checks
Every parameter can be read where it is: none is empty, and none was packed into something opaque. One that a cold load of the
same engine leaves readable is REF003's.

## Why it matters
A digest of nothing is equal to a digest of nothing. vLLM on a CPU packs its weights and leaves parameters of size 0: its own
checksum of a refitted engine is then that of a fresh one, whatever it computes with. Only logprobs can tell (REF010).

## How to fix
On a CPU, use `--engine-mode plain`, which keeps weights readable.

## When it can be wrong
It is no fault of the sync; it says how far this report can be trusted.

## Seen in
vLLM 0.32 on CPUs (tied heads and experts are stale after `reload_weights`)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.phrase import count, few
from ckptcheck.refit.trace import RefitTrace


@rule("REF007", "unreadable-weights", severity="warning", on="refit", when=lambda trace: bool(trace.cold))
def check(trace: RefitTrace) -> Iterator[Problem]:
    last = trace.syncs[-1] if trace.syncs and trace.syncs[-1].manifest else None
    seen, hidden = (last.manifest, last.hidden) if last is not None else (trace.cold, {})
    found = {
        key[1]: entry.opaque
        for key, entry in seen.items()
        if entry.opaque and not (entry.kind == "parameter" and key in hidden)
    }
    if found:
        names = sorted(found)
        plain = trace.engine is not None and trace.engine.facts.get("mode") == "plain"
        yield Problem(
            f"{count(len(names), 'tensor')} cannot be read ({found[names[0]]}): {few(names)}; of these only logprobs can tell",
            key=names[0],
            hint=None if plain else "--engine-mode plain keeps weights readable",
        )
