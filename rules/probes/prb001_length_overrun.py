"""The engine goes past max_model_len, or does not use all of it.

## What it checks
A prompt that leaves room for eight tokens is asked for more than that, past end tokens. Prompt and response have to come to
max_model_len exactly. An engine that refuses such a request is then asked for exactly eight. It may keep two places to
itself, as SGLang 0.5.23 does.

## Why it matters
A trainer that was sized for max_model_len runs out of memory or cuts sequences that the reward was computed on. A response
that ends early is a truncated answer that nobody marked as one.

## How to fix
Cap `max_tokens` in every request. Where responses end early, look for a limit of the engine's own.

## When it can be wrong
An engine whose last one or two places stay empty passes: its table says how many were used. The limit is tried at 48
tokens, so a limit that only counts at full length, such as that of a cache which is too small, is not met here.

## Seen in
NVIDIA-NeMo/RL tools/model_diagnostics/1.max_model_len_respected.py
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.length import LengthSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked

RESERVE = 2
"""Places that SGLang keeps free of tokens (Scheduler.init_req_max_new_tokens: the context - 1, less the prompt, less 1)."""


@rule("PRB001", "length-overrun", severity="error", on="probe", when=asked("length"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    seen = trace.of("length", LengthSeen)
    total = seen.prompt + seen.response
    if total > seen.limit:
        yield Problem(
            f"with max_model_len {seen.limit} a prompt of {seen.prompt} tokens got a response of {seen.response}:"
            f" {total} in all",
            hint="cap max_tokens in every request, and tell the engine's maintainers",
        )
    elif total < seen.limit - RESERVE:
        yield Problem(
            f"with max_model_len {seen.limit} a prompt of {seen.prompt} tokens got a response of only {seen.response}"
            f" ({seen.finish or 'no reason given'}), though {seen.limit - total} more have room",
            hint="look for a limit of the engine's own: a generation config, a default of max_tokens",
        )
