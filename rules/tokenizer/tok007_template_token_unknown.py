"""The chat template writes a control token that the tokenizer does not have.

## What it checks
What the chat template writes in ordinary conversations and looks like a control token (`<|im_end|>`, `<｜User｜>`) is one
token of the tokenizer: the one that ends a turn, and every one of a template that has others in the tokenizer.

## Why it matters
The marker is split into pieces of ordinary text (`<`, `|`, `im`, …). No engine can stop at it by its id, and the model
sees another thing than it was trained on: the tokenizer's added tokens were not saved, or the template is another model's.

## How to fix
Save the tokenizer with which the model was trained, or take the template that belongs to this one.

## When it can be wrong
A model may have learned a marker in pieces. Where no marker of a template is a token, and turns end with one that is
(Zephyr, Tulu, OLMo: `<|user|>` as text, then `eos_token`), nothing is said.

## Seen in
OpenHelix-Team/ReconVLA#7
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.document import clipped
from ckptcheck.phrase import few


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
    unknown = sorted(own - vocabulary.ids.keys())
    known = sorted(own & vocabulary.ids.keys())
    if not unknown or not (known or tokenizer.turn_end in unknown):
        return
    verb = "is not one token" if len(unknown) == 1 else "are not one token each"
    beside = f", as {clipped(known[0], 40)} is" if known else ""
    yield Problem(
        f"the chat template writes {few([clipped(mark, 40) for mark in unknown])}, which {verb} of {vocabulary.file}"
        f"{beside}; it is split into pieces of text",
        file=template.file,
        key=template.key,
        hint="save the tokenizer with which the model was trained, or take the template that belongs to this one",
    )
