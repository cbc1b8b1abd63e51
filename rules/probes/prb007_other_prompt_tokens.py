"""The engine tokenises a conversation differently than the checkpoint's own chat template.

## What it checks
The probe renders a conversation with the checkpoint's chat template and tokenises the text as it is. It sends the same messages
to the engine, and the rendered text as a plain prompt. Both have to give the same tokens.

## Why it matters
The trainer tokenises the conversation itself. With a second BOS, a system prompt that one side adds, or another template, the
policy is trained on prompts that it never received. Where only the text differs, it is mostly the BOS: templates write it, and the
tokenizer adds another to every plain text.

## How to fix
Send token ids to the engine. Otherwise give it the same template (vLLM `--chat-template`), and look for a BOS that both the
template and the tokenizer add. A rendered text needs `add_special_tokens=false`.

## When it can be wrong
- A job that sends token ids never uses the engine's template and is not affected; neither is one that sends no rendered text by a
  warning about the text.
- A template that writes the date differs if midnight lies between the two renderings. A template that you gave to the engine on
  purpose differs by intent.
- The probe tries one conversation: it does not see how tools, images or thinking are rendered.

## Seen in
slime docs/en/developer_guide/debug.md: an instruct model at 0.8 nats a token suggests another chat template; Hugging Face's
documentation of chat templates, which warns of special tokens added twice
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.requests import TokenizationResult, describe_token_difference
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe


@rule("PRB007", "other-prompt-tokens", severity="error", on="probe", when=requires_probe("prompt"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("prompt", TokenizationResult)
    if result.chat != result.expected:
        yield Problem(
            f"the engine tokenises a conversation differently than the checkpoint's template and tokenizer:"
            f" {describe_token_difference(result.expected, result.chat)}",
            hint="send token ids, or give the engine the template of the training code",
        )
    elif result.text != result.expected:
        yield Problem(
            f"a rendered conversation that is sent as a text gives other tokens than the conversation:"
            f" {describe_token_difference(result.expected, result.text)}",
            hint="send token ids, or messages, or add_special_tokens=false",
            severity="warning",
        )
