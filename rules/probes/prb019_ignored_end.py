"""A stop token of the model does not end a response.

## What it checks
The probe forces every token that generation_config.json or config.json names as an end token within a response. The engine,
started with the checkpoint's own tokenizer and generation config, has to stop right there.

## Why it matters
A model that says it is done but has to continue writes turns of the user, runs to the limit, and is trained on what came after
its answer.

## How to fix
Give the engine the checkpoint's generation config, or name the tokens in `stop_token_ids`. `ckptcheck scan` says where the files
disagree.

## When it can be wrong
- The probe also tests a token that `config.json` still names from an older model and that no longer ends a response: correct the
  file.
- A job that sends `ignore_eos`, or relies on its own `stop_token_ids`, decides for itself; `--without ends` leaves the probe out.
- The probe does not try stop strings, nor end tokens that only the tokenizer names.

## Seen in
Instruct models with a list of end tokens of which an engine took only the first; TOK003 of the scan says where the files disagree
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.stop_tokens import StopTokensResult
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe


@rule("PRB019", "ignored-end", severity="error", on="probe", when=requires_probe("ends"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("ends", StopTokensResult)
    for token in result.ignored_tokens:
        yield Problem(
            f"token {token} ends a response by {result.stop_tokens[token]}, and the engine goes on after it",
            hint="give the engine the checkpoint's generation config (vLLM --generation-config auto), or stop_token_ids",
        )
