r"""The trainer packs modules that the engine keeps plain, or the other way round.

## What it checks
What a module is sent as, packed (INT4, INT8, FP8) or plain, is what the engine built it for.

## Why it matters
Both sides read one ignore list, and read it otherwise. SGLang asks about modules (`mlp.gate`), slime about parameters
(`mlp.gate.weight`): the entry `re:.*mlp.gate$` leaves the router alone in the one, and not in the other. slime then sends
`mlp.gate.weight_packed`, SGLang's Qwen3-MoE drops a name that it does not know without a log line, and the router stays what it
was: all zero where memory was released before. Of experts that one side leaves alone the engine serves what no update writes.

## How to fix
Write the entry so that both match: `re:.*mlp\.gate(\.weight)?$`.

## When it can be wrong
An engine that packs plain weights by itself while it loads them (its own online quantization) is sent what it wants.

## Seen in
THUDM/slime (INT4 debug guide: `mlp.gate.weight` all zero), volcengine/verl#7519
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.phrase import count, few
from ckptcheck.refit.packing import disagreements, entry_for_both
from ckptcheck.refit.trace import RefitTrace


@rule(
    "REF023",
    "packed-otherwise",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.manifest for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    assert trace.engine is not None
    only_sent, only_built = disagreements(trace.syncs[0].sent, trace.cold)
    facts = trace.trainer.facts if trace.trainer is not None else {}
    whose = facts.get("quantizer", "the trainer")
    for modules, said in (
        (only_sent, f"packed by {whose} and built plain by {trace.engine.name}"),
        (only_built, f"sent plain by {whose} and built packed by {trace.engine.name}"),
    ):
        if modules:
            entry = entry_for_both(facts.get("ignore", ""), modules)
            yield Problem(
                f"{count(len(modules), 'module is', 'modules are')} {said}: {few(modules)}",
                key=modules[0],
                hint=f'write "{entry[1]}" in place of "{entry[0]}" in the ignore list, which both then read alike'
                if entry
                else "write the ignore list so that both sides match the same names",
            )
