"""Responses end in a loop.

## What it checks
At least half of the responses of 16 tokens or more end in a loop: the same up to 64 tokens, at least four times, over half of the
response. Where one token makes the loop and it is the same in all of them, PAR050 reports it.

## Why it matters
A sound model that samples at temperature 1 leaves a loop soon. When most responses of different prompts loop, weights were not
loaded or mapped rightly, a stop token is not known, or the chat template is another one than the model was trained on. The trainer
trains on what it gets.

## How to fix
Print the texts (`ckptcheck parity judge FILE --tokenizer DIR`). Try the instruct model of the same architecture. Compare the
engine's weights with the checkpoint (`ckptcheck refit --attach`).

## When it can be wrong
Base models and small models loop at temperatures below 0.5, so the rule is skipped there. Prompts that ask for lists or tables
of one form.

## Seen in
slime docs/en/developer_guide/debug.md: garbled output may be specific to the pretrained model
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.coherence import LEAST
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count

SHARE = 0.5
"""The share of a response that is a loop."""
COOL = 0.5
"""Below this temperature sound models loop."""


@rule("PAR051", "looping-responses", severity="warning", on="rollouts", when=lambda evidence: evidence.is_well_formed)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    temperature = evidence.rollouts.metadata.sampling.temperature
    if temperature is not None and temperature < COOL:
        raise Skip(f"at temperature {temperature:g} sound models may loop")
    shapes = evidence.response_shapes
    if not shapes:
        raise Skip(f"no response has {LEAST} tokens")
    loops = [shape for shape in shapes if shape.loop_share >= SHARE]
    if 2 * len(loops) < len(shapes) or len({(loop.period, loop.token) for loop in loops}) == 1 == loops[0].period:
        return
    worst = max(loops, key=lambda shape: shape.loop_share)
    yield Problem(
        f"{len(loops):,} of {count(len(shapes), 'response')} end in a loop; that of sequence {worst.sequence} repeats "
        f"{count(worst.period, 'token')} over {worst.loop_share:.0%} of the response",
        key=f"sequence {worst.sequence}",
        hint="print the texts with --tokenizer, and compare the engine's weights with the checkpoint",
    )
