"""The engine goes past max_model_len, or does not use all of it.

## What it checks
- The probe sends a prompt that leaves room for eight tokens, and asks for more than that, past stop tokens. Prompt and response
  have to come to max_model_len exactly.
- If the engine refuses such a request, the probe asks for exactly eight tokens.
- The engine may keep two positions free, as SGLang 0.5.23 does.

## Why it matters
A trainer that was sized for max_model_len runs out of memory, or cuts sequences on which the reward was computed. A response that
ends early is a truncated answer that nothing marks as truncated.

## How to fix
Cap `max_tokens` in every request. Where responses end early, look for a limit that the engine sets itself.

## When it can be wrong
- An engine that leaves its last one or two positions empty passes; the table says how many it used.
- The probe tries a limit of 48 tokens. It does not find a limit that applies only at full length, such as a cache that is too
  small.

## Seen in
NVIDIA-NeMo/RL tools/model_diagnostics/1.max_model_len_respected.py
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.length import LengthResult
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe

RESERVE = 2
"""Places that SGLang keeps free of tokens (Scheduler.init_req_max_new_tokens: the context - 1, less the prompt, less 1)."""


@rule("PRB001", "length-overrun", severity="error", on="probe", when=requires_probe("length"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("length", LengthResult)
    total = result.prompt + result.response
    if total > result.limit:
        yield Problem(
            f"with max_model_len {result.limit} a prompt of {result.prompt} tokens got a response of"
            f" {result.response}: {total} in all",
            hint="cap max_tokens in every request, and tell the engine's maintainers",
        )
    elif total < result.limit - RESERVE:
        yield Problem(
            f"with max_model_len {result.limit} a prompt of {result.prompt} tokens got a response of only"
            f" {result.response} ({result.finish or 'no reason given'}), though {result.limit - total} more have room",
            hint="look for a limit that the engine sets itself: a generation config, a default of max_tokens",
        )
