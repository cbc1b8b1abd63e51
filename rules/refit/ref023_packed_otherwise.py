r"""The trainer packs modules that the engine keeps plain, or the reverse.

## What it checks
- The trainer sends each module in the form for which the engine built it: packed (INT4, INT8, FP8) or plain.

## Why it matters
- Both sides read one ignore list and may interpret it differently. SGLang matches module names (`mlp.gate`), slime
  matches parameter names (`mlp.gate.weight`). The entry `re:.*mlp.gate$` leaves the router out in SGLang and not in
  slime.
- slime then sends `mlp.gate.weight_packed`. SGLang's Qwen3-MoE drops the unknown name without a log line, and the
  router keeps its old values: zeros if memory was released before.
- If only one side leaves experts out, the engine serves experts that no update writes.

## How to fix
- Write the entry so that it matches both: `re:.*mlp\.gate(\.weight)?$`.

## When it can be wrong
- An engine that packs plain weights itself while it loads them (online quantization) expects plain weights.

## Seen in
THUDM/slime (INT4 debug guide: `mlp.gate.weight` all zero), volcengine/verl#7519
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.refit.packing import packing_mismatches, suggest_ignore_entry
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "REF023",
    "packed-otherwise",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.manifest for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    engine = trace.engine.name if trace.engine is not None else "the engine"
    only_sent, only_built = packing_mismatches(trace.syncs[0].sent, trace.cold_manifest)
    facts = trace.trainer.facts if trace.trainer is not None else {}
    quantizer = facts.get("quantizer", "the trainer")
    for modules, mismatch in (
        (only_sent, f"packed by {quantizer} and built plain by {engine}"),
        (only_built, f"sent plain by {quantizer} and built packed by {engine}"),
    ):
        if modules:
            suggestion = suggest_ignore_entry(facts.get("ignore", ""), modules)
            yield Problem(
                f"{count(len(modules), 'module is', 'modules are')} {mismatch}: {join_truncated(modules)}",
                key=modules[0],
                hint=f'write "{suggestion[1]}" in place of "{suggestion[0]}" in the ignore list: both sides then read it alike'
                if suggestion
                else "write the ignore list so that both sides match the same names",
                names=tuple(modules),
            )
