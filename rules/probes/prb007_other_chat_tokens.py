"""The engine makes other tokens of a conversation than the checkpoint's own template.

## What it checks
A conversation is rendered with the checkpoint's chat template, tokenised as it stands, and handed to the engine as messages.
Both have to be the same tokens.

## Why it matters
The trainer tokenises the conversation itself. A second BOS, a system prompt that one side adds, or another template means
that the policy is trained on prompts that it was never given.

## How to fix
Send token ids to the engine. Else give it the same template (vLLM `--chat-template`), and look for a BOS that is written by the
template and added by the tokenizer as well.

## When it can be wrong
A job that sends token ids never meets the engine's template, and is not hurt. A template that writes the date differs
when midnight lies between the two, and one that was given to the engine on purpose differs by intent. One
conversation is tried: tools, images or thinking may be rendered otherwise and are not seen.

## Seen in
slime docs/en/developer_guide/debug.md: an instruct model at 0.8 nats a token suggests another chat template
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.ends import PromptSeen
from ckptcheck.parity.probes.tokens import apart
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB007", "other-chat-tokens", severity="error", on="probe", when=asked("prompt"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    seen = trace.of("prompt", PromptSeen)
    if seen.chat != seen.due:
        yield Problem(
            f"the engine makes other tokens of a conversation than the checkpoint's template and tokenizer:"
            f" {apart(seen.due, seen.chat)}",
            hint="send token ids, or give the engine the template of the training code",
        )
