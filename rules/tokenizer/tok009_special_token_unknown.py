"""A special token that the tokenizer names is not in its vocabulary.

## What it checks
`bos_token`, `eos_token` and `pad_token` of tokenizer_config.json (or special_tokens_map.json) are tokens of the tokenizer.

## Why it matters
transformers gives such a token a new id after the last one, without a word. The model has never seen it: as `eos_token` it
never comes, so generation does not stop and answers are masked wrongly; as `bos_token` it starts each text with a row that
was not trained; as `pad_token` it makes the embedding fail where it has no row left.

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
}


@rule("TOK009", "special-token-unknown", severity="error", when=lambda ckpt: ckpt.tokenizer is not None)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    from ckptcheck.checkpoint.vocabulary import table_of

    tokenizer = ckpt.tokenizer
    assert tokenizer is not None
    missing = [role for role in tokenizer.roles if role.name in HARM and role.id is None]
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
