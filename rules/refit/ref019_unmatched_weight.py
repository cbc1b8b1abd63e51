r"""The trainer sends weights under names, or in a form, for which the engine built nothing.

## What it checks
- For every weight that the trainer sends, the engine has a tensor that is built from it. The rule matches names (fused projections
  and experts included) and then bytes. If most names match nothing, the engine has its own naming, and the rule is skipped.
- The trainer sends each module in the form for which the engine built it: packed (INT4, INT8, FP8) or plain (an error).

## Why it matters
- Engines that ignore unknown names report success. A head that was sent under another name, or layers with another prefix, are then
  never updated. REF001 reports the unwritten tensors; this rule reports what was sent for them.
- Both sides read one ignore list and may interpret it differently. SGLang matches module names (`mlp.gate`), slime matches
  parameter names (`mlp.gate.weight`). The entry `re:.*mlp.gate$` leaves the router out in SGLang and not in slime.
- slime then sends `mlp.gate.weight_packed`. SGLang's Qwen3-MoE drops the unknown name without a log line, and the router keeps its
  old values: zeros if memory was released before. If only one side leaves experts out, the engine serves experts that no update
  writes.

## How to fix
- Send the weight under the name that the engine's loader expects, or do not send it.
- Write the entry so that it matches both: `re:.*mlp\.gate(\.weight)?$`.

## When it can be wrong
- Engines leave out some weights by design: the head of a tied model, and layers of multi-token prediction without a draft model.
- An engine that packs plain weights itself while it loads them (online quantization) expects plain weights.

## Seen in
SGLang 0.5.23 (Qwen3-MoE drops unknown names without a log line); vLLM 0.32 raises ValueError, which REF009 reports; THUDM/slime
(INT4 debug guide: `mlp.gate.weight` all zero), volcengine/verl#7519
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.packing import packing_mismatches, suggest_ignore_entry
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.weight_names import unmatched_weights
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "REF019",
    "unmatched-weight",
    severity="warning",
    on="refit",
    when=lambda trace: any(sync.manifest for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    packed = list(_compare_forms(trace))
    yield from packed
    names = unmatched_weights(trace)
    if names is None:
        raise Skip("the engine names its tensors in another way than checkpoints do")
    # what is packed on one side alone has another form in the engine, so nothing there is built from it
    explained = {module for problem in packed for module in problem.names}
    if names := [name for name in names if name.rpartition(".")[0] not in explained]:
        yield Problem(
            f"the trainer sent {count(len(names), 'weight')} that no tensor of the engine is built from:"
            f" {join_truncated(names)}",
            key=names[0],
            hint="send it under a name that the engine's loader knows, or not at all",
            names=tuple(names),
        )


def _compare_forms(trace: RefitTrace) -> Iterator[Problem]:
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
                severity="error",
                names=tuple(modules),
            )
