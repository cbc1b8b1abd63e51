"""The run cannot be compared with the reference, or differs from it in settings of logprobs.

## What it checks
`ckptcheck parity judge RUN --against REFERENCE`:

- The files of the reference are well-formed, and the two runs have at least five steps in common at which something can be
  compared.
- What both runs record is the same: the model, the kind of logprobs (raw or processed), sampling, stop tokens, clip bounds, and of
  engine and trainer the version, temperature, dtype, layout and every fact that the file holds, such as `prefix_caching`,
  `async_scheduling`, `compilation`, `head_fp32` and `disable_cascade_attn`. Else it is a warning, which names what changes
  logprobs first. The engine's name and version alone may differ: that is what such a comparison is for. Names of GPUs and the
  transport of weights do not count.

## Why it matters
- Fewer steps do not show how noisy the reference is, so any difference may be chance. A check that compared nothing must not look
  like a passed one.
- If several settings change at once, a curve that departs does not say which of them is the cause.

## How to fix
- Save rollouts of both runs at the same steps, five or more, with their step (`ckptcheck parity convert --step N`).
- Give these settings the same values in both runs, one change at a time, and write down the ones that you left to the defaults of
  the engine's version.

## When it can be wrong
The setting is the very change that the two runs should show.

## Seen in
runs that save rollouts every 10 steps, compared with others that save every 25; PipelineRL's first run on vLLM V1: several V1-only
defaults were on, so it was no fair baseline (https://huggingface.co/blog/ServiceNow-AI/correctness-before-corrections)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.run_comparison import RunComparison
from ckptcheck.text.formatting import count


@rule("PAR045", "unequal-reference", severity="error", on="rollout-runs")
def check(runs: RunComparison) -> Iterator[Problem]:
    for member in runs.reference.members:
        if member.defect:
            yield Problem(
                f"a file of the reference is malformed: {member.defect}",
                file=member.target,
                hint="write it again, or leave it out; convert the dump of a framework first: ckptcheck parity convert",
            )
    if not runs.comparisons:
        run, reference = runs.steps
        yield Problem(
            f"nothing is compared: the run has {count(len(run), 'step')}, the reference {len(reference)}, and"
            f" {len(run & reference)} are in common, where {runs.least_steps} are needed",
            hint="save rollouts of both runs at the same steps, scored by both sides",
        )
    if unlike := runs.find_unlike_settings():
        yield Problem(
            f"the run differs from the reference (in brackets) in {', '.join(unlike)}",
            hint="make them alike, or read the curves as the effect of all of these together",
            severity="warning",
        )
