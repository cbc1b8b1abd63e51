"""Probabilities differ more than precision explains.

## What it checks
mean |e^trainer - e^engine|, as verl logs it: above 0.01 (`--max-prob-diff`). With `--max-abs`, also mean |trainer - engine|
in nats, which slime and miles gate in CI by 0.1.

## Why it matters
verl's documentation calls 0.005 normal, and above 0.01 a precision issue. It weighs tokens that either side is sure of,
which KL and ratios see least.

## How to fix
As for PAR020.

## When it can be wrong
Engines of lower precision than the trainer: measure the floor and give `--floor`.

## Seen in
verl docs/faq; volcengine/verl#3894 (0.5 with gpt-oss-20B), OpenClaw-RL#69 (0.2 to 0.4 of |Δ|)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.parity.judging import older


@rule("PAR022", "probability-difference", severity="warning", on="rollouts", when=lambda judged: judged.scored)
def check(judged: Judged) -> Iterator[Problem]:
    found, gates = judged.gap, judged.gates
    if not found.prob_diff_mean <= gates.prob_diff:
        times = judged.times_floor("prob_diff_mean", found.prob_diff_mean)
        text = f"probabilities differ by {found.prob_diff_mean:.3g} in the mean{times}, and the limit is {gates.prob_diff:g}"
        yield Problem(text + older(judged), hint="see what PAR020 says")
    if gates.abs_mean is not None and not found.abs_sequence_mean <= gates.abs_mean:
        times = judged.times_floor("abs_mean", found.abs_sequence_mean)
        text = f"logprobs differ by {found.abs_sequence_mean:.3g} nats in the mean{times}, and the limit is {gates.abs_mean:g}"
        yield Problem(text + older(judged), hint="see what PAR020 says")
