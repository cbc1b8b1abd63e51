"""A special token that the tokenizer names is not in its vocabulary.

## What it checks
These are tokens of the tokenizer:
- `bos_token`, `eos_token` and `pad_token`, of special_tokens_map.json, which overrides tokenizer_config.json; if
  tokenizer_config.json has `added_tokens_decoder`, its own, as in transformers;
- `cls_token` and `sep_token`, if the post-processor of tokenizer.json puts them around every text.

`mask_token` and `unk_token` are not checked.

## Why it matters
transformers gives such a token a new id after the last one, without a warning. The model has never seen it:
- As `eos_token` it never comes, so generation does not stop and trainers mask answers wrongly.
- As `bos_token` it starts each text with an untrained row.
- As `pad_token` it makes the embedding fail if it has no row left.
- BERT's class puts the new id of a `[CLS]` before each text in place of the trained one.

## How to fix
Name a token that the tokenizer has, or save the tokenizer with the token that training added.

## When it can be wrong
A `pad_token` for which the embedding still has a row is masked and harmless; it is not reported.

## Seen in
meta-llama/llama-cookbook#189, haotian-liu/LLaVA#94
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.views import TokenizedCheckpoint

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
