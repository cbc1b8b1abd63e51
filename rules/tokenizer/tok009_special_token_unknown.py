"""A special token that the tokenizer names is not in its vocabulary.

## What it checks
`bos_token`, `eos_token` and `pad_token` are tokens of the tokenizer. They are those of special_tokens_map.json, which
overrides tokenizer_config.json; where tokenizer_config.json has `added_tokens_decoder`, its own, as in transformers. So are
`cls_token` and `sep_token` where the post-processor of tokenizer.json puts them around every text, and `unk_token` where the
model (WordPiece, WordLevel) says it for a word that it does not know. `mask_token` is not asked for.

## Why it matters
transformers gives such a token a new id after the last one, without a word. The model has never seen it: as `eos_token` it
never comes, so generation does not stop and answers are masked wrongly; as `bos_token` it starts each text with a row that
was not trained; as `pad_token` it makes the embedding fail where it has no row left. BERT's class puts the new id of a
`[CLS]` before each text in place of the trained one. Without its `[UNK]` the library `tokenizers` raises an error at the first
rare character.

## How to fix
Name a token that the tokenizer has, or save the tokenizer with the token that training added.

## When it can be wrong
A `pad_token` for which the embedding still has a row is masked and harmless, and not reported.

## Seen in
meta-llama/llama-cookbook#189, haotian-liu/LLaVA#94
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.document import clipped

HARM = {
    "bos_token": "every text starts with a token the model has never seen",
    "eos_token": "it never comes, so nothing stops there",
    "pad_token": "the embedding has no row for it",
    "cls_token": "texts begin with that one, or with an id that has no token",
    "sep_token": "texts end with that one, or with an id that has no token",
}
AROUND = ("cls_token", "sep_token")


@rule("TOK009", "special-token-unknown", severity="error", when=lambda ckpt: ckpt.tokenizer is not None)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    from ckptcheck.checkpoint.vocabulary import table_of

    tokenizer = ckpt.tokenizer
    assert tokenizer is not None
    known = tokenizer.vocabulary
    if known is not None and known.unknown is not None and known.unknown not in known.model:
        for role in tokenizer.roles:
            if role.name == "unk_token" and role.token == known.unknown:
                yield Problem(
                    f"unk_token is {clipped(known.unknown, 40)}, which model.vocab of tokenizer.json does not have; the library "
                    "tokenizers raises an error at the first word that it does not know",
                    file=known.file,
                    key="model.unk_token",
                    hint="save the tokenizer again, or copy tokenizer.json from the model this one was made from",
                )
    framing = known.framing if known is not None else frozenset()
    missing = [
        role
        for role in tokenizer.roles
        if role.name in HARM and role.id is None and (role.name not in AROUND or role.token in framing)
    ]
    if not missing:
        return
    vocabulary = tokenizer.require_vocabulary()
    table = table_of(ckpt) if not ckpt.is_partial else None
    for role in missing:
        number = tokenizer.appended.get(role.token or "", tokenizer.max_id + len(missing))
        if role.name == "pad_token" and (table is None or number < table.rows):
            continue
        yield Problem(
            f"{role.name} is {clipped(role.token or '', 40)}, which {vocabulary.file} does not have; transformers gives it "
            f"a new id: {HARM[role.name]}",
            file=role.file,
            key=role.name,
            hint="name a token that the tokenizer has, or save the tokenizer with the token that training added",
        )
