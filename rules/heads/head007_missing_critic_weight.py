"""Weights of the critic that are not its head are missing, and transformers draws them at random.

## What it checks
`ckptcheck critic` loads the source in transformers' class for token classification, as verl and ROLL load a critic. Every weight
outside the head comes from the source. Of a language model only the head may be new.

## Why it matters
transformers only logs what it draws. The critic then computes values from random layers, and training starts all the same.

## How to fix
Export the weights under the names that the class loads; `ckptcheck scan` names the first that is missing.

## When it can be wrong
A class with code of its own keeps the trunk under other names; ckptcheck does not load such classes.

## Seen in
The design of ROLL's Megatron critic: a load from a GPT may lack only `value_head`
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.critic import CriticComparison
from ckptcheck.text.formatting import count, join_truncated


@rule("HEAD007", "missing-critic-weight", severity="error", on="critic")
def check(critic: CriticComparison) -> Iterator[Problem]:
    if missing := critic.missing_outside_head:
        yield Problem(
            f"{critic.model_class} draws {count(len(missing), 'weight')} at random that the source lacks:"
            f" {join_truncated(missing)}",
            key=missing[0],
            hint="export these weights under the names that the class loads",
        )
