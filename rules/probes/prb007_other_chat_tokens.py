"""The engine tokenises a conversation differently than the checkpoint's own chat template.

## What it checks
The probe renders a conversation with the checkpoint's chat template, tokenises the text as it is, and sends the same messages to
the engine. Both have to give the same tokens.

## Why it matters
The trainer tokenises the conversation itself. With a second BOS, a system prompt that one side adds, or another template, the
policy is trained on prompts that it never received.

## How to fix
Send token ids to the engine. Otherwise give it the same template (vLLM `--chat-template`), and look for a BOS that both the
template and the tokenizer add.

## When it can be wrong
- A job that sends token ids never uses the engine's template and is not affected.
- A template that writes the date differs if midnight lies between the two renderings. A template that you gave to the engine on
  purpose differs by intent.
- The probe tries one conversation: it does not see how tools, images or thinking are rendered.

## Seen in
slime docs/en/developer_guide/debug.md: an instruct model at 0.8 nats a token suggests another chat template
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.tokenization import TokenizationResult, describe_token_difference
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe


@rule("PRB007", "other-chat-tokens", severity="error", on="probe", when=requires_probe("prompt"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("prompt", TokenizationResult)
    if result.chat != result.expected:
        yield Problem(
            f"the engine tokenises a conversation differently than the checkpoint's template and tokenizer:"
            f" {describe_token_difference(result.expected, result.chat)}",
            hint="send token ids, or give the engine the template of the training code",
        )
