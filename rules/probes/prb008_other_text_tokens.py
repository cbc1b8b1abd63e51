"""A rendered conversation, sent as a text, becomes other tokens than the conversation itself.

## What it checks
The text that the chat template writes is handed to the engine as a plain prompt, and its tokens are compared.

## Why it matters
Templates write the BOS, and the tokenizer adds another to every plain text. Rollout code that renders the template itself and
calls the completions endpoint trains on prompts with two.

## How to fix
Send token ids, or messages to the chat endpoint, or `add_special_tokens=false`.

## When it can be wrong
A job that sends no rendered text is not concerned.

## Seen in
Hugging Face's documentation of chat templates, which warns of special tokens added twice
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.ends import PromptSeen
from ckptcheck.parity.probes.tokens import apart
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB008", "other-text-tokens", severity="warning", on="probe", when=asked("prompt"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    seen = trace.of("prompt", PromptSeen)
    if seen.text != seen.due and seen.chat == seen.due:
        yield Problem(
            f"a rendered conversation that is sent as a text becomes other tokens than the conversation:"
            f" {apart(seen.due, seen.text)}",
            hint="send token ids, or messages, or add_special_tokens=false",
        )
