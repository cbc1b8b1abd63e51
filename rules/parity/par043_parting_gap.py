"""The gap between engine and trainer parts from that of the reference run.

## What it checks
`ckptcheck parity judge RUN --against REFERENCE`: policy ratio, lag, clip rate (of tokens and of sequences), ESS, k3 and
mult_prob_error of the run, step by step, against those of the reference. A curve parts at a step if from there on at least three
of four steps are beyond the noise of the reference's own curve, on the same side. Only a run that is then worse is reported.

## Why it matters
These numbers compare two computations of the same tokens. They depend on the inference engine, its settings and the weight sync,
and hardly on luck. Clip rate, entropy and reward follow them: a correction of the objective would hide the cause.

## How to fix
Begin with the curve that parts first; the message names where to look:
1. the ratio: what the engine's logprobs mean (logprobs-mode, temperature, penalties);
2. the lag: how weights are updated in flight (pause mode, caches, asynchronous scheduling);
3. the others: how the engine computes (prefix cache, dtype of the output head, kernels): `ckptcheck parity why`.

## When it can be wrong
The two runs differ in more than the engine (PAR046), such as the model, the learning rate or the prompts. A reference of few steps
hides small differences: its noise is known badly, so larger differences are needed.

## Seen in
PipelineRL's move from vLLM 0.8.5 to 0.18.1 (https://huggingface.co/blog/ServiceNow-AI/correctness-before-corrections): clip rate
and lag left the reference early in training, entropy and reward followed
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.run_comparison import RunComparison

LOOK_AT = {
    "ratio": "see what a logprob means on both sides first: logprobs-mode, temperature, penalties (ckptcheck parity probe)",
    "lag": "compare how both runs update weights: pause mode, caches, scheduling (ckptcheck preflight, ckptcheck refit)",
}
PATH = "compare how both engines compute: prefix cache, scheduling, dtype of the head (ckptcheck parity why), not the objective yet"


@rule("PAR043", "parting-gap", severity="error", on="rollout-runs", when=lambda runs: bool(runs.comparisons))
def check(runs: RunComparison) -> Iterator[Problem]:
    if not (worse := runs.worse):
        return
    first = worse[0]
    run, reference = first.later
    text = f"{first.curve.name} is the first curve of the gap to part, at step {first.parting}: {run:.4g} from there on, and"
    text += f" {reference:.4g} in the reference ({first.multiple_label})"
    others = [
        f"{other.curve.name} at step {other.parting}"
        for other in runs.partings
        if other is not first and (other.is_worse or other.curve.kind == "outcome")
    ]
    if others:
        text += f"; also {', '.join(others)}"
    yield Problem(text, key=first.curve.name, hint=LOOK_AT.get(first.curve.name, PATH))
