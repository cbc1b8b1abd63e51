"""No experiment explains a good part of the gap, or there was nothing to compare.

## What it checks
At least one token under the response mask has a finite logprob on both sides. Else it is an error. Then: how much of the excess
over the floor remains after every experiment that ckptcheck could run.

## Why it matters
A gap over no tokens is 0, which looks perfect. And an unknown cause is not harmless: without this finding a reader takes the causes
that were found for all causes.

## How to fix
- Look at the skipped experiments and supply what they need: a trainer, an engine, recorded distributions, weight versions.
- Then let `ckptcheck parity localize` find the first module whose output differs.
- Nothing to compare: score the rollouts with `ckptcheck parity record` and `ckptcheck parity score`. `ckptcheck parity judge` says
  what is wrong with a file.

## When it can be wrong
Where the floor was assumed and not measured, the remaining gap may be the floor: `ckptcheck parity calibrate` measures it.

## Seen in
PipelineRL's move from vLLM V0 to V1 (a gap remained after the right kind of logprobs: the head's dtype), verl-project/verl#7970
(rollouts whose response mask is all zero)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.attribution.search import EXPLAINED
from ckptcheck.live.experiments.attribution.trace import Attribution
from ckptcheck.text.formatting import count


@rule("ATT002", "unexplained-gap", severity="warning", on="attribution")
def check(evidence: Attribution) -> Iterator[Problem]:
    search = evidence.search
    if not search.tokens:
        yield Problem(
            "no token could be compared",
            hint="ckptcheck parity judge says what is wrong with the rollouts",
            severity="error",
        )
        return
    if search.is_at_floor or search.explained >= EXPLAINED or search.remaining_gap <= evidence.limit:
        return
    skipped = [step.name for step in search.steps if step.skipped]
    unexplained = 1 - max(0.0, search.explained)
    text = f"the cause of {unexplained:.0%} of the gap is unknown: mean |Δ| is {search.remaining_gap:.3g} nats"
    text += " with all causes removed"
    if skipped:
        text += f"; {count(len(skipped), 'experiment was', 'experiments were')} skipped: {', '.join(skipped)}"
    hint = (
        "supply what the skipped experiments need"
        if skipped
        else "ckptcheck parity localize names the first module that differs"
    )
    yield Problem(text, hint=hint)
