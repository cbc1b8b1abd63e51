"""Trainer and engine continue the same prompt with different tokens.

## What it checks
- After every sync, both sides decode greedily from one prompt (a sentence if the checkpoint has a tokenizer) and give
  the same tokens.
- A tie is allowed: where the tokens differ, the rule reports it only if the trainer prefers its own token by more
  than the noise of both sides. If the engine also rounds the inputs of its layers (W8A8, FP8), the preference must
  exceed twice the difference of the cold load too.

## Why it matters
- Greedy decoding checks what prefill does not: the cache, positions and the attention of decoding, token after token.
- A model with wrong weights babbles, and the report shows the text.

## How to fix
- With equal weights: look at the rotary cache, the prefix cache and the end-of-text settings.
- Otherwise: see the findings about weights.

## When it can be wrong
- In bf16 two tokens may be closer than the noise, which the trial measured over other tokens.

## Seen in
THUDM/slime and NeMo-RL guides: the first rollout is garbage when a converter is wrong; NVIDIA-NeMo/RL#3259
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trace_queries import input_rounding_tolerance


@rule(
    "REF017",
    "other-greedy-text",
    severity="error",
    on="refit",
    when=lambda trace: any(scoring.greedy_text for scoring in trace.scorings),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    tie = max(trace.noise_floor.tie_tolerance, input_rounding_tolerance(trace).most)
    for scoring in trace.scorings:
        greedy = scoring.greedy_text
        if greedy is None or (place := greedy.first_divergence) is None or greedy.gap <= tie:
            continue
        sync_label = f"sync {scoring.after_sync}" if scoring.after_sync else "a cold load"
        texts = f": {greedy.engine_text!r}, the trainer {greedy.trainer_text!r}" if greedy.engine_text else ""
        yield Problem(
            f"after {sync_label}, greedy decoding differs from the trainer's at token {place + 1} of {len(greedy.trainer)}: the"
            f" engine adds {greedy.engine[place]}, the trainer {greedy.trainer[place]}, which it prefers by"
            f" {greedy.gap:.3g} nats{texts}",
            hint="see the findings about weights and logprobs"
            if scoring.after_sync
            else "compare the configs of both sides",
        )
        return
