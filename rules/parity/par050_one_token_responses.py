"""Responses consist of one token, repeated.

## What it checks
In at least half of the responses of 16 tokens or more, nine of ten tokens are the same one, and at least half of these responses
repeat the same token.

## Why it matters
An engine that answers different prompts with one token over and over computes with broken weights: NaN makes it the first token of
the vocabulary ("!!!!"), a buffer that was released or a tensor that was not loaded makes it some other. The trainer then trains on
it. Logprobs may look well, for each repetition is likely once it has begun.

## How to fix
Compare the engine's weights with the checkpoint (`ckptcheck refit --attach`), and look in the trainer's log for the line that says
that the checkpoint was loaded. If the weights are right, restart the engine without its sleep mode: buffers that no update sends
may be lost there.

## When it can be wrong
A policy that has collapsed to one token does the same with its own weights: the first step's rollouts tell. Prompts that ask
for a row of one token. Greedy decoding (temperature 0) of a small base model: there the finding is a warning.

## Seen in
slime docs/en/developer_guide/debug.md ("check if the generated rollout is coherent"); sgl-project/sglang and vllm-project/vllm
have many reports of "!!!!!!"
"""

from collections import Counter
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.coherence import LEAST
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count

SHARE = 0.9
"""The share of a response that one token has."""


@rule("PAR050", "one-token-responses", severity="error", on="rollouts", when=lambda evidence: evidence.is_well_formed)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    shapes = evidence.response_shapes
    if not shapes:
        raise Skip(f"no response has {LEAST} tokens")
    constant = [shape for shape in shapes if shape.token_share >= SHARE]
    if 2 * len(constant) < len(shapes):
        return
    token, number = Counter(shape.token for shape in constant).most_common(1)[0]
    if 2 * number < len(constant):
        return
    first = next(shape for shape in constant if shape.token == token)
    text = f" ({evidence.decode(token)})" if evidence.decode is not None else ""
    yield Problem(
        f"{number:,} of {count(len(shapes), 'response')} repeat token {token}{text} and say nothing else: the engine computes with "
        "broken weights, or the policy has collapsed",
        key=f"sequence {first.sequence}",
        severity="warning" if evidence.rollouts.metadata.sampling.temperature == 0 else None,
        hint="compare the engine's weights with the checkpoint: ckptcheck refit --attach",
    )
