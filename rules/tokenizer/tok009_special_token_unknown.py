"""A special token that the tokenizer names is not in its vocabulary.

## What it checks
These are tokens of the tokenizer:
- `bos_token`, `eos_token` and `pad_token`, of special_tokens_map.json, which overrides tokenizer_config.json; if
  tokenizer_config.json has `added_tokens_decoder`, its own, as in transformers;
- `cls_token` and `sep_token`, if the post-processor of tokenizer.json puts them around every text;
- the tokens that the post-processor puts around every text: the ids that it writes for them are tokens' ids, and if a token is in
  the vocabulary, they are its own (a warning);
- `unk_token`, if the model (WordPiece, WordLevel) returns it for an unknown word.

`mask_token` is not checked.

## Why it matters
transformers gives such a token a new id after the last one, without a warning. The model has never seen it:
- As `eos_token` it never comes, so generation does not stop and trainers mask answers wrongly.
- As `bos_token` it starts each text with an untrained row.
- As `pad_token` it makes the embedding fail if it has no row left.
- BERT's class puts the new id of a `[CLS]` before each text in place of the trained one.
- The library `tokenizers` writes the ids of the post-processor without a look at the vocabulary. One that has no token is an
  untrained row before each text, or an IndexError.
- Without its `[UNK]` the library `tokenizers` raises an error at the first rare character.

## How to fix
Name a token that the tokenizer has, or save the tokenizer with the token that training added.

## When it can be wrong
- A `pad_token` for which the embedding still has a row is masked and harmless; it is not reported.
- Some classes of transformers, such as Llama's, put their own post-processor in the place of the file's. Other consumers of
  tokenizer.json do not.

## Seen in
meta-llama/llama-cookbook#189, haotian-liu/LLaVA#94
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.views import TokenizedCheckpoint

if TYPE_CHECKING:
    from ckptcheck.checkpoint.vocabulary import Vocabulary

HARM = {
    "bos_token": "every text starts with a token the model has never seen",
    "eos_token": "the model never generates it, so generation never stops there",
    "pad_token": "the embedding has no row for it",
    "cls_token": "texts begin with that one, or with an id that has no token",
    "sep_token": "texts end with that one, or with an id that has no token",
}
FRAMING_ROLES = ("cls_token", "sep_token")


@rule("TOK009", "special-token-unknown", severity="error", on="tokenizer")
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    from ckptcheck.checkpoint.embedding_table import find_embedding_table

    tokenizer = ckpt.tokenizer
    known = tokenizer.vocabulary
    if known is not None and known.unk_token is not None and known.unk_token not in known.model:
        for role in tokenizer.roles:
            if role.name == "unk_token" and role.token == known.unk_token:
                yield Problem(
                    f"unk_token is {clip(known.unk_token, 40)}, which model.vocab of tokenizer.json does not have; the library "
                    "tokenizers raises an error at the first word that it does not know",
                    file=known.file,
                    key="model.unk_token",
                    hint="save the tokenizer again, or copy tokenizer.json from the model this one was made from",
                )
    if known is not None:
        yield from _check_framing(ckpt, known)
    framing = known.post_processor_tokens if known is not None else frozenset()
    missing = [
        role
        for role in tokenizer.roles
        if role.name in HARM and role.id is None and (role.name not in FRAMING_ROLES or role.token in framing)
    ]
    if not missing:
        return
    vocabulary = tokenizer.require_vocabulary()
    table = find_embedding_table(ckpt) if not ckpt.is_partial else None
    for role in missing:
        number = tokenizer.implicit_added_tokens.get(role.token or "", tokenizer.max_id + len(missing))
        if role.name == "pad_token" and (table is None or number < table.rows):
            continue
        yield Problem(
            f"{role.name} is {clip(role.token or '', 40)}, which {vocabulary.file} does not have; transformers gives it "
            f"a new id: {HARM[role.name]}",
            file=role.file,
            key=role.name,
            hint="name a token that the tokenizer has, or save the tokenizer with the token that training added",
        )


def _check_framing(ckpt: TokenizedCheckpoint, known: Vocabulary) -> Iterator[Problem]:
    """Yield the tokens around every text whose ids belong to no token, or to another one."""
    from ckptcheck.checkpoint.embedding_table import find_embedding_table

    for framing in known.framing:
        lost = [number for number in framing.ids or () if number not in known.id_to_token]
        if lost:
            table = find_embedding_table(ckpt) if not ckpt.is_partial else None
            beyond = table is not None and lost[0] >= table.rows
            yield Problem(
                f"the post-processor writes the id {lost[0]:,} for {clip(framing.token, 40)} around every text, and no token has it"
                + ("; the embedding has no row for it" if beyond else ""),
                file=known.file,
                key=framing.key,
                hint="save the tokenizer again, or copy tokenizer.json from the model this one was made from",
            )
        elif (
            framing.ids is not None
            and len(framing.ids) == 1
            and known.ids.get(framing.token, framing.ids[0]) != framing.ids[0]
        ):
            yield Problem(
                f"the post-processor writes the id {framing.ids[0]:,} for {clip(framing.token, 40)} around every text, and that "
                f"token has the id {known.ids[framing.token]:,}",
                file=known.file,
                key=framing.key,
                severity="warning",
                hint="save the tokenizer again, or copy tokenizer.json from the model this one was made from",
            )
