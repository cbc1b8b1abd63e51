"""A rendered conversation that is sent as text gives other tokens than the conversation itself.

## What it checks
The probe sends the text that the chat template writes to the engine as a plain prompt, and compares its tokens.

## Why it matters
Templates write the BOS, and the tokenizer adds another to every plain text. Rollout code that renders the template itself and
calls the completions endpoint trains on prompts with two.

## How to fix
Send token ids, or messages to the chat endpoint, or `add_special_tokens=false`.

## When it can be wrong
A job that sends no rendered text is not affected.

## Seen in
Hugging Face's documentation of chat templates, which warns of special tokens added twice
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.tokenization import TokenizationResult, describe_token_difference
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe


@rule("PRB008", "other-text-tokens", severity="warning", on="probe", when=requires_probe("prompt"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("prompt", TokenizationResult)
    if result.text != result.expected and result.chat == result.expected:
        yield Problem(
            f"a rendered conversation that is sent as a text gives other tokens than the conversation:"
            f" {describe_token_difference(result.expected, result.text)}",
            hint="send token ids, or messages, or add_special_tokens=false",
        )
