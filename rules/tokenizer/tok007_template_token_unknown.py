"""The chat template writes a control token that the tokenizer does not have.

## What it checks
What the chat template writes in ordinary conversations and looks like a control token (`<|im_end|>`, `<｜User｜>`) is one token
of the tokenizer: the one that ends a turn, and every one in a template that has others in the tokenizer.

## Why it matters
The tokenizer splits the marker into pieces of ordinary text (`<`, `|`, `im`, …). No engine can stop at it by its id, and the model
reads something else than in training. The tokenizer's added tokens were not saved, or the template is another model's.

## How to fix
Save the tokenizer with which the model was trained, or take the template that belongs to this one.

## When it can be wrong
- A model may have learned a marker in pieces. The rule reports nothing if no marker of a template is a token and turns end with one
  that is (Zephyr, Tulu, OLMo: `<|user|>` as text, then `eos_token`), also if the template spells that end out (StableLM:
  `<|endoftext|>`).
- So it misses a template whose roles are words and which lost all its tokens except a general end.

## Seen in
OpenHelix-Team/ReconVLA#7
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.views import TokenizedCheckpoint
from ckptcheck.text.formatting import join_truncated

if TYPE_CHECKING:
    from ckptcheck.checkpoint.tokenizer import Tokenizer

ROLE = re.compile(r"<\|[a-z]+\|>")
"""A role that may be ordinary text: <|user|>."""
CHAT_END = re.compile(r"im_end|eot|turn|<\|end\|>|return|message|role")
"""An end that only chats have. Other control tokens beside it were added for chats too."""


@rule(
    "TOK007",
    "template-token-unknown",
    severity="warning",
    on="tokenizer",
    when=lambda ckpt: ckpt.tokenizer.template is not None,
)
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    from ckptcheck.checkpoint.chat_template import MARKER

    tokenizer = ckpt.tokenizer
    vocabulary = tokenizer.require_vocabulary()
    if (template := tokenizer.template) is None:
        return
    # Only markers that the template spells out count: its bos_token and eos_token come from the tokenizer.
    own = set(MARKER.findall(template.ordinary)) & set(MARKER.findall(template.literals))
    unknown = sorted(own - vocabulary.ids.keys())
    known = sorted(own & vocabulary.ids.keys() - _find_literal_eos(tokenizer, unknown))
    if unknown and (known or tokenizer.turn_end in unknown):
        verb = "is not one token" if len(unknown) == 1 else "are not one token each"
        beside = f", as {clip(known[0], 40)} is" if known else ""
        yield Problem(
            f"the chat template writes {join_truncated([clip(mark, 40) for mark in unknown])}, which {verb} of {vocabulary.file}"
            f"{beside}; it is split into pieces of text",
            file=template.file,
            key=template.key,
            hint="save the tokenizer with which the model was trained, or take the template that belongs to this one",
        )


def _find_literal_eos(tokenizer: Tokenizer, unknown: list[str]) -> set[str]:
    """Return the eos_token that a template spells out, if its roles are words (StableLM)."""
    own = tokenizer.eos_role
    if own is None or own.token is None or CHAT_END.search(own.token):
        return set()
    return {own.token} if all(ROLE.fullmatch(mark) for mark in unknown) else set()
