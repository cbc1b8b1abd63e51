"""The chat template writes a control token that the tokenizer does not have.

## What it checks
What the chat template writes in ordinary conversations and looks like a control token (`<|im_end|>`, `<｜User｜>`) is one
token of the tokenizer: the one that ends a turn, and every one of a template that has others in the tokenizer. It is one of
the added tokens, or one that tokenizer_config.json names: a mere entry of the vocabulary is not found in a text. That is
tried with the library `tokenizers`, for tokenizer.json; of vocab.json and vocab.txt every entry counts.

## Why it matters
The marker is split into pieces of ordinary text (`<`, `|`, `im`, …). No engine can stop at it by its id, and the model
sees another thing than it was trained on: the tokenizer's added tokens were not saved, or the template is another model's.

## How to fix
Save the tokenizer with which the model was trained, or take the template that belongs to this one.

## When it can be wrong
A model may have learned a marker in pieces. Where no marker of a template is a token, and turns end with one that is
(Zephyr, Tulu, OLMo: `<|user|>` as text, then `eos_token`), nothing is said, also where the template spells that end out
(StableLM: `<|endoftext|>`). So a template whose roles are words and whose tokens are all lost but a general end is passed
over.

## Seen in
OpenHelix-Team/ReconVLA#7
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.document import clipped
from ckptcheck.phrase import few

if TYPE_CHECKING:
    from ckptcheck.checkpoint.tokenizer import Tokenizer

ROLE = re.compile(r"<\|[a-z]+\|>")
"""A role that may well be text: <|user|>."""
CHAT_END = re.compile(r"im_end|eot|turn|<\|end\|>|return|message|role")
"""An end that only chats have, so that the tokens beside it were added for chats."""


@rule(
    "TOK007",
    "template-token-unknown",
    severity="warning",
    when=lambda ckpt: ckpt.tokenizer is not None and ckpt.tokenizer.template is not None,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    from ckptcheck.checkpoint.chat_template import MARKER

    tokenizer = ckpt.tokenizer
    assert tokenizer is not None
    assert tokenizer.template is not None
    vocabulary = tokenizer.require_vocabulary()
    template = tokenizer.template
    # its own are those that its text spells out: a bos_token or eos_token in it is the tokenizer's
    own = {mark for mark in MARKER.findall(template.ordinary) if mark in template.literals}
    hint = "save the tokenizer with which the model was trained, or take the template that belongs to this one"
    unknown = sorted(own - vocabulary.ids.keys())
    known = sorted(own & vocabulary.ids.keys() - _spelled_out(tokenizer, unknown))
    if unknown and (known or tokenizer.turn_end in unknown):
        verb = "is not one token" if len(unknown) == 1 else "are not one token each"
        beside = f", as {clipped(known[0], 40)} is" if known else ""
        yield Problem(
            f"the chat template writes {few([clipped(mark, 40) for mark in unknown])}, which {verb} of {vocabulary.file}"
            f"{beside}; it is split into pieces of text",
            file=template.file,
            key=template.key,
            hint=hint,
        )
    if split := _split(ckpt, own):
        stand = "stands" if len(split) == 1 else "stand"
        yield Problem(
            f"the chat template writes {few([clipped(mark, 40) for mark in split])}, which {stand} in the vocabulary of "
            "tokenizer.json but not among its added tokens; it is split into pieces of text",
            file="tokenizer.json",
            key="added_tokens",
            hint=hint,
        )


def _spelled_out(tokenizer: Tokenizer, unknown: list[str]) -> set[str]:
    """The end of a text that a template writes by its name and not as eos_token, where its roles are words (StableLM)."""
    own = tokenizer.tokenizer_eos
    if own is None or own.token is None or CHAT_END.search(own.token):
        return set()
    return {own.token} if all(ROLE.fullmatch(mark) for mark in unknown) else set()


def _split(ckpt: Checkpoint, marks: set[str]) -> list[str]:
    """Those of these tokens that the library `tokenizers` does not find in a text, although the vocabulary has them."""
    from ckptcheck.checkpoint.vocabulary import encoded

    tokenizer = ckpt.tokenizer
    assert tokenizer is not None
    vocabulary = tokenizer.require_vocabulary()
    if vocabulary.file != "tokenizer.json":
        return []
    named = [part.value for part in (tokenizer.tokenizer_config, tokenizer.special_tokens_map) if part is not None]
    texts = [
        json.dumps(value, ensure_ascii=False) for part in named for key, value in part.items() if "chat" not in key
    ]
    # transformers adds what these two name as special tokens
    doubted = [
        mark for mark in marks & vocabulary.model.keys() - tokenizer.added.keys() if mark not in "\0".join(texts)
    ]
    found = encoded(ckpt.source, " ".join(doubted)) if doubted else frozenset()
    return sorted(mark for mark in doubted if found is not None and vocabulary.ids[mark] not in found)
