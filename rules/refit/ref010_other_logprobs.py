"""The engine computes other logprobs than a cold load of the same weights.

## What it checks
- After every sync, the engine's logprobs by prefill and by decoding, and its greedy tokens, equal those of the same
  engine started cold from the same weights.
- The limit is 1e-6 nats, or ten times the difference between two runs of the cold engine if that is larger.
- After a tie separates the greedy tokens, the rule compares nothing further.
- On a GPU, another process may choose other kernels. A difference that rounding explains is skipped there after a
  step.

- Where all weights are right, the trial captures the outputs of the modules on both sides for one prompt, and names the first that
  differs.

## Why it matters
- No packed copy, derived tensor or forgotten cache can pass this check. If every weight is equal and the logprobs are
  not, the engine computes with something that is not among its weights.

## How to fix
- With equal weights: look at REF005, REF007 and REF011, and at CUDA graphs that hold old pointers. Restart the engine
  to be sure.

## When it can be wrong
- Kernels whose sums depend on the batch round differently. The trial scores the sequences in the same batches on both
  sides.

## Seen in
vLLM 0.32 on CPUs: after `reload_weights` of a tied model its packed head is stale, and every parameter is equal
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.observations import Sync
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trace_queries import ScoringDiffs, compare_scoring


@rule(
    "REF010",
    "other-logprobs",
    severity="error",
    on="refit",
    when=lambda trace: any(scoring.after_sync for scoring in trace.scorings),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    skip_reason = ""
    for scoring in trace.scorings:
        diffs = compare_scoring(scoring)
        if not scoring.after_sync or diffs.most <= trace.noise_floor.cold_load_tolerance:
            continue
        sync = trace.syncs[scoring.after_sync - 1]
        if sync.step and _is_explained_by_kernels(trace, sync, diffs):
            skip_reason = (
                f"after sync {scoring.after_sync}, logprobs differ by up to {diffs.most:.3g} nats: rounding explains more,"
                " and on a GPU another process may choose other kernels"
            )
            continue
        if not sync.manifest:
            reason, hint = (
                "; the trial did not compare weights",
                "compare weights, which tells a wrong one from a stale cache",
            )
        elif sync.has_wrong_parameter:
            reason, hint = ", and so do weights", "see the findings about weights"
        else:
            reason = ", although every weight that can be read is equal: the engine computes with something else"
            reason += _describe_module(trace, sync)
            hint = "see REF005 and REF007; restart the engine to be sure"
        yield Problem(
            f"after sync {scoring.after_sync}, logprobs differ from a cold load of the same weights by up to"
            f" {diffs.prefill.most:.3g} nats in prefill and {diffs.decode.most:.3g} in decoding{reason}",
            hint=hint,
        )
        return
    if skip_reason:
        raise Skip(skip_reason)


def _is_explained_by_kernels(trace: RefitTrace, sync: Sync, diffs: ScoringDiffs) -> bool:
    """Whether other GPU kernels in another process may explain the difference.

    Not before the first step: there the cold load was the same process.
    """
    return (
        trace.engine is not None
        and trace.engine.facts.get("device") == "cuda"
        and not sync.has_wrong_parameter
        and diffs.most <= trace.noise_floor.trainer_tolerance.most
    )


def _describe_module(trace: RefitTrace, sync: Sync) -> str:
    """Name the first module whose output differs from the cold load, if the trial looked for it."""
    found = trace.module_differences.get(sync.number)
    if found is None:
        return ""
    if not found.module:
        return f" after its modules ({found.compared:,} put out the same in a prefill): in the logits, or only when it decodes"
    relation = f" ({found.relation})" if found.relation else ""
    return f", first in {found.module}, whose output differs by up to {found.most:.3g}{relation}"
