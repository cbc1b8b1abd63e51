"""The chat template rewrites an earlier answer once the conversation goes on.

## What it checks
The default template (and the one for tools, where there is one) renders conversations up to an answer, and beyond it: with a
further question, or with the result of a tool that the answer calls; without thinking, with thinking in <think> tags, and with
thinking in `reasoning_content`. The second text begins with the first one up to the end of the answer, and both have the thinking.
The rule leaves out conversations that the template refuses.

## Why it matters
That is right for serving: Qwen3 and DeepSeek-R1 expect earlier answers without their thinking. But in training over several turns,
a later rendering then differs from the generated sequence: trainers that join turns refuse it or duplicate text, masks computed
from the lengths of prefixes cover other tokens, and the prefix cache starts again at each turn.

## How to fix
Keep the generated tokens, turn by turn, and render only the new messages; or train each turn as a sequence of its own; or take a
template that keeps earlier answers (TRL has such templates for many models).

## When it can be wrong
You train single turns, or only serve the model.

## Seen in
verl-project/verl#6854, NVIDIA-NeMo/RL#2821 (each answer twice), NVIDIA-NeMo/Automodel#3024 (masks), OpenPipe/ART#726
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.chat_template import RewrittenTurn
from ckptcheck.checkpoint.views import TokenizedCheckpoint
from ckptcheck.text.formatting import join_words

RENDERED_TEMPLATES = ("default", "tool_use")
"""The templates that transformers uses if the caller names none."""
FOLLOW_UPS = {"question": "the user asks again", "tool result": "a tool answers"}


@rule(
    "TOK016",
    "rewritten-turns",
    severity="info",
    on="tokenizer",
    when=lambda ckpt: any(name in ckpt.tokenizer.templates for name in RENDERED_TEMPLATES),
)
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    for name in RENDERED_TEMPLATES:
        template = ckpt.tokenizer.templates.get(name)
        if template is None or not template.rewritten_turns:
            continue
        follow_ups = list(dict.fromkeys(FOLLOW_UPS[turn.follow_up] for turn in template.rewritten_turns))
        yield Problem(
            f"the chat template {_describe(template.rewritten_turns)} once {join_words(follow_ups)}",
            file=template.file,
            key=template.key,
            hint="in training over several turns keep the tokens that were generated, and do not render them again",
        )


def _describe(turns: tuple[RewrittenTurn, ...]) -> str:
    if any(turn.drops_thinking for turn in turns):
        return "drops the thinking of earlier answers"
    first = turns[0]
    return f"rewrites earlier answers ({first.after!r} where {first.before!r} stood)"
