"""The engine computes with a copy of its weights that cannot be read.

## What it checks
- Every parameter can be read in place: none is empty, and none is packed into an opaque format.
- REF003 reports a parameter that a cold load of the same engine leaves readable.

## Why it matters
- The digest of nothing always equals the digest of nothing. vLLM on a CPU packs its weights and leaves parameters of
  size 0, so its own checksum after a refit equals that of a fresh engine, whatever it computes with.
- For these tensors only the logprobs can show a fault (REF010).

## How to fix
- On a CPU, use `--set engine-mode=plain`, which keeps weights readable.

## When it can be wrong
- The finding is not a fault of the sync. It says how far you can trust this report.

## Seen in
vLLM 0.32 on CPUs (tied heads and experts are stale after `reload_weights`)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.text.formatting import count, join_truncated


@rule("REF007", "unreadable-weights", severity="warning", on="refit", when=lambda trace: bool(trace.cold_manifest))
def check(trace: RefitTrace) -> Iterator[Problem]:
    last = trace.syncs[-1] if trace.syncs and trace.syncs[-1].manifest else None
    manifest, readable_when_cold = (
        (last.manifest, last.unreadable_tensors) if last is not None else (trace.cold_manifest, {})
    )
    reasons = {
        key[1]: entry.opaque
        for key, entry in manifest.items()
        if entry.opaque and not (entry.kind == "parameter" and key in readable_when_cold)
    }
    if reasons:
        names = sorted(reasons)
        is_plain = trace.engine is not None and trace.engine.facts.get("mode") == "plain"
        yield Problem(
            f"{count(len(names), 'tensor')} cannot be read ({reasons[names[0]]}): {join_truncated(names)}; only logprobs can"
            f" show whether {'it is' if len(names) == 1 else 'they are'} right",
            key=names[0],
            hint=None if is_plain else "--set engine-mode=plain keeps weights readable",
            names=tuple(names),
        )
