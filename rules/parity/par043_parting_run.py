"""A run parts from the reference run, in the gap between engine and trainer or in entropy and reward.

## What it checks
`ckptcheck parity judge RUN --against REFERENCE`, of rollouts or of what two jobs printed: policy ratio, lag, clip rate (of tokens
and of sequences), ESS, k3, mult_prob_error and the logged gap of the run, step by step, against those of the reference. A curve
diverges at a step if from there on at least three of four steps are beyond the noise of the reference's own curve, on the same
side, or if the differences, each too small alone, add up to more than chance makes (a two-sided cumulative sum at the last step)
and the run did not come back. Only a run that is then worse is reported. Where no such curve is worse, the first outcome that
parts is a warning: entropy, KL to the reference, reward, lengths, silent groups.

## Why it matters
These numbers compare two computations of the same tokens. They depend on the inference engine, its settings and the weight sync,
and hardly on luck. Clip rate, entropy and reward follow them: a correction of the objective would hide the cause.

Where entropy or reward part alone, the engine's logprobs are as good as the reference's, and the two runs train differently for
another reason: the data, the objective, the optimizer, or chance.

## How to fix
Begin with the curve that diverges first; the message names where to look:
1. the ratio: what the engine's logprobs mean (logprobs-mode, temperature, penalties);
2. the lag: how weights are updated in flight (pause mode, caches, asynchronous scheduling);
3. the others: how the engine computes (prefix cache, dtype of the output head, kernels): `ckptcheck parity why`.

Entropy and reward alone: compare the settings of the trainer, the prompts and the rewards. If chance is the suspect, run the
reference twice and judge one against the other.

## When it can be wrong
- The two runs differ in more than the engine (PAR045), such as the model, the learning rate or the prompts.
- A reference of few steps hides small differences: its noise is known badly, so larger differences are needed.
- A cumulative sum takes the values of a curve to be independent, or correlated as the reference's neighbours are. Of simulated
  sound curves it parts fewer than 0.05 % (independent), 2 % (autocorrelation 0.5) or 7 % (0.7), and up to half of random walks.
- Two sound runs with other seeds drift apart in entropy and reward. One reference shows the noise of its own curve only, and not
  how far apart two such runs end.

## Seen in
PipelineRL's move from vLLM 0.8.5 to 0.18.1 (https://huggingface.co/blog/ServiceNow-AI/correctness-before-corrections): clip rate
and lag left the reference early in training, entropy and reward followed; the final run follows the reward of the reference
closely and not exactly
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.run_comparison import RunComparison

LOOK_AT = {
    "ratio": "see what a logprob means on both sides first: logprobs-mode, temperature, penalties (ckptcheck parity probe)",
    "lag": "compare how both runs update weights: pause mode, caches, scheduling (ckptcheck preflight, ckptcheck refit)",
}
PATH = "compare how both engines compute: prefix cache, scheduling, dtype of the head (ckptcheck parity why), not the objective yet"


@rule("PAR043", "parting-run", severity="error", on="rollout-runs", when=lambda runs: bool(runs.comparisons))
def check(runs: RunComparison) -> Iterator[Problem]:
    yield from _judge_gap(runs) if runs.worse else _judge_outcome(runs)


def _judge_gap(runs: RunComparison) -> Iterator[Problem]:
    first = runs.worse[0]
    run, reference = first.later
    text = f"{first.curve.name} is the first curve of the gap to diverge, at step {first.parting}: {run:.4g} from there on, and"
    text += f" {reference:.4g} in the reference ({first.multiple_label})"
    others = [
        f"{other.curve.name} at step {other.parting}"
        for other in runs.partings
        if other is not first and (other.is_worse or other.curve.kind == "outcome")
    ]
    if others:
        text += f"; also {', '.join(others)}"
    yield Problem(text, key=first.curve.name, hint=LOOK_AT.get(first.curve.name, PATH))


def _judge_outcome(runs: RunComparison) -> Iterator[Problem]:
    outcomes = [parting for parting in runs.partings if parting.curve.kind == "outcome"]
    if not outcomes:
        return
    outcome, *others = outcomes
    run, reference = outcome.later
    text = f"{outcome.curve.name} diverges at step {outcome.parting}: {run:.4g} from there on, {reference:.4g} in the reference"
    text += f" ({outcome.multiple_label}), and the gap between engine and trainer is no worse"
    if others:
        text += f"; also {', '.join(f'{other.curve.name} at step {other.parting}' for other in others)}"
    yield Problem(
        text,
        key=outcome.curve.name,
        hint="compare data, rewards, objective and seeds; judge a second run of the reference to see what chance alone does",
        severity="warning",
    )
