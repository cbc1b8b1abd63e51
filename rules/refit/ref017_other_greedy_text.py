"""Trainer and engine go on from the same prompt in other words.

## What it checks
After every sync the tokens that greedy decoding adds to one prompt (a sentence, where the checkpoint has a tokenizer) are the
trainer's own. A tie is no difference: where they part, the trainer prefers its own token by more than the noise of both sides,
and by more than twice the gap of the cold load where the engine rounds the inputs of its layers too (W8A8, FP8).

## Why it matters
It checks what prefill does not: the cache, positions and the attention of decoding, token after token. A model with wrong weights
babbles, and the report shows the text.

## How to fix
With equal weights: look at the rotary cache, the prefix cache and the end-of-text settings. Else see the findings about weights.

## When it can be wrong
In bf16 two tokens may be nearer than the noise that was measured over other tokens.

## Seen in
THUDM/slime and NeMo-RL guides: the first rollout is garbage when a converter is wrong; NVIDIA-NeMo/RL#3259
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.refit.judging import rounding_of_inputs
from ckptcheck.refit.trace import RefitTrace


@rule(
    "REF017",
    "other-greedy-text",
    severity="error",
    on="refit",
    when=lambda trace: any(scoring.speech for scoring in trace.scorings),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    allowed = max(trace.floor.tie, rounding_of_inputs(trace).most)
    for scoring in trace.scorings:
        said = scoring.speech
        if said is None or (place := said.parted) is None or said.gap <= allowed:
            continue
        when = f"sync {scoring.after}" if scoring.after else "a cold load"
        texts = f": {said.engine_text!r}, the trainer {said.trainer_text!r}" if said.engine_text else ""
        yield Problem(
            f"after {when} greedy decoding parts from the trainer's at token {place + 1} of {len(said.trainer)}: the engine adds"
            f" {said.engine[place]}, the trainer {said.trainer[place]}, which it prefers by {said.gap:.3g} nats{texts}",
            hint="see the findings about weights and logprobs"
            if scoring.after
            else "compare the configs of both sides",
        )
        return
