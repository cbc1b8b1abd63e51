"""The engine ends a response too early or too late.

## What it checks
- `length`: the probe sends a prompt that leaves room for eight tokens, and asks for more than that, past stop tokens. Prompt and
  response have to come to max_model_len exactly. If the engine refuses such a request, the probe asks for exactly eight tokens.
  The engine may keep two positions free, as SGLang 0.5.23 does.
- `ends`: the probe forces every token that generation_config.json or config.json names as an end token within a response. The
  engine, started with the checkpoint's own tokenizer and generation config, has to stop right there.

## Why it matters
- A trainer that was sized for max_model_len runs out of memory, or cuts sequences on which the reward was computed. A response
  that ends early is a truncated answer that nothing marks as truncated.
- A model that says it is done but has to continue writes turns of the user, runs to the limit, and is trained on what came after
  its answer.

## How to fix
- Length: cap `max_tokens` in every request. Where responses end early, look for a limit that the engine sets itself.
- End tokens: give the engine the checkpoint's generation config, or name the tokens in `stop_token_ids`. `ckptcheck scan` says
  where the files disagree.

## When it can be wrong
- An engine that leaves its last one or two positions empty passes; the table says how many it used.
- The probe tries a limit of 48 tokens. It does not find a limit that applies only at full length, such as a cache that is too
  small.
- The probe also tests a token that `config.json` still names from an older model and that no longer ends a response: correct the
  file.
- A job that sends `ignore_eos`, or relies on its own `stop_token_ids`, decides for itself; `--without ends` leaves the probe out.
- The probe does not try stop strings, nor end tokens that only the tokenizer names.

## Seen in
NVIDIA-NeMo/RL tools/model_diagnostics/1.max_model_len_respected.py; turboderp-org/exllamav2#803 and Blaizzy/mlx-vlm#309 (of a
list of end tokens only the first was taken; TOK003 says how the files disagree)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.requests import LengthResult, StopTokensResult
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe

RESERVE = 2
"""Places that SGLang keeps free of tokens (Scheduler.init_req_max_new_tokens: the context - 1, less the prompt, less 1)."""


@rule("PRB001", "misplaced-end", severity="error", on="probe", when=requires_probe("length", "ends"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    for _, result in trace.list_results("length", "ends"):
        if isinstance(result, LengthResult):
            yield from _find_unkept_length(result)
        elif isinstance(result, StopTokensResult):
            for token in result.ignored_tokens:
                yield Problem(
                    f"token {token} ends a response by {result.stop_tokens[token]}, and the engine goes on after it",
                    hint="give the engine the checkpoint's generation config (vLLM --generation-config auto), or stop_token_ids",
                )


def _find_unkept_length(result: LengthResult) -> Iterator[Problem]:
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
