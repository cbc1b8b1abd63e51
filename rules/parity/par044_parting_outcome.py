"""Entropy or reward part from the reference run, while the gap between engine and trainer does not.

## What it checks
`ckptcheck parity judge RUN --against REFERENCE`: entropy and reward of the run part from those of the reference by a multiple of
the reference's noise, and no curve of the gap (PAR043) is worse.

## Why it matters
The engine's logprobs are as good as the reference's, so the two runs train differently for another reason: the data, the
objective, the optimizer, or chance.

## How to fix
Compare the settings of the trainer, the prompts and the rewards. If chance is the suspect, run the reference twice and judge one
against the other.

## When it can be wrong
Two sound runs with other seeds drift apart in entropy and reward. One reference shows the noise of its own curve only, and not how
far apart two such runs end.

## Seen in
PipelineRL's move to vLLM V1, whose final run follows the reward of the reference closely and not exactly
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.run_comparison import RunComparison


@rule("PAR044", "parting-outcome", severity="warning", on="rollout-runs", when=lambda runs: bool(runs.comparisons))
def check(runs: RunComparison) -> Iterator[Problem]:
    if runs.worse:
        return
    for outcome in runs.partings:
        if outcome.curve.kind != "outcome":
            continue
        run, reference = outcome.later
        yield Problem(
            f"{outcome.curve.name} parts at step {outcome.parting}: {run:.4g} from there on, {reference:.4g} in the reference"
            f" ({outcome.multiple_label}), and the gap between engine and trainer is no worse",
            key=outcome.curve.name,
            hint="compare data, rewards, objective and seeds; judge a second run of the reference to see what chance does",
        )
