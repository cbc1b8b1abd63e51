"""An end token of the model does not end a response.

## What it checks
Every token that generation_config.json or config.json calls an end is forced on the model within a response. The engine, started
with the checkpoint's own tokenizer and generation config, has to stop right there.

## Why it matters
A model that says it is done and is made to go on writes turns of the user, runs to the limit, and is trained on what came
after its answer.

## How to fix
Give the engine the checkpoint's generation config, or name the tokens in `stop_token_ids`. `ckptcheck scan` says where the files
disagree.

## When it can be wrong
A token that stands in `config.json` from an older model, and that nobody means as an end any more, is asked of the
engine all the same: correct the file. A job that sends `ignore_eos` or counts on `stop_token_ids` of its own decides
for itself; `--without ends` leaves the probe out. Stop strings, and end tokens that only the tokenizer names, are not
tried.

## Seen in
Instruct models with a list of end tokens of which an engine took only the first; TOK003 of the scan says where the files disagree
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.ends import EndsSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB019", "ignored-end", severity="error", on="probe", when=asked("ends"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    seen = trace.of("ends", EndsSeen)
    for token in seen.passed:
        yield Problem(
            f"token {token} ends a response by {seen.ends[token]}, and the engine goes on after it",
            hint="give the engine the checkpoint's generation config (vLLM --generation-config auto), or stop_token_ids",
        )
