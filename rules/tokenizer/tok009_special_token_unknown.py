"""A special token is not in the vocabulary, or its id in a config has no row in the model.

## What it checks
These are tokens of the tokenizer:
- `bos_token`, `eos_token` and `pad_token`, of special_tokens_map.json, which overrides tokenizer_config.json; if
  tokenizer_config.json has `added_tokens_decoder`, its own, as in transformers;
- `cls_token` and `sep_token`, if the post-processor of tokenizer.json puts them around every text.

`mask_token` and `unk_token` are not checked.

`bos_token_id`, `eos_token_id` and `pad_token_id` of config.json and generation_config.json are smaller than the number of rows of
the embedding of a language model. Of several ends, one is enough. Negative ids are left out: older models write them for "none".

## Why it matters
transformers gives such a token a new id after the last one, without a warning. The model has never seen it:
- As `eos_token` it never comes, so generation does not stop and trainers mask answers wrongly.
- As `bos_token` it starts each text with an untrained row.
- As `pad_token` it makes the embedding fail if it has no row left.
- BERT's class puts the new id of a `[CLS]` before each text in place of the trained one.

An id beyond the rows: transformers refuses to build most models whose `pad_token_id` in config.json lies there (`Padding_idx must
be within num_embeddings`). With one in generation_config.json `generate` raises an IndexError as soon as one answer of a batch ends
before the others. An end there never comes, so `generate` does not stop. Usually such ids are defaults of the config's class, or
the vocabulary was cut.

## How to fix
Write the ids of this model's tokenizer. Name a token that the tokenizer has, or save the tokenizer with the token that training
added.

## When it can be wrong
A `pad_token` for which the embedding still has a row is masked and harmless; it is not reported. A model may
keep ids beyond its rows for another part than the language model.

## Seen in
meta-llama/llama-cookbook#189, haotian-liu/LLaVA#94, GaiZhenbiao/Phi3V-Finetuning#12
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.views import TokenizedCheckpoint

if TYPE_CHECKING:
    from ckptcheck.checkpoint.tokenizer import Tokenizer

HARM = {
    "bos_token": "every text starts with a token the model has never seen",
    "eos_token": "the model never generates it, so generation never stops there",
    "pad_token": "the embedding has no row for it",
    "cls_token": "texts begin with that one, or with an id that has no token",
    "sep_token": "texts end with that one, or with an id that has no token",
}
HARM_OF_IDS = {
    "bos_token_id": "generation without a prompt starts with an IndexError",
    "eos_token_id": "it never comes, so generation does not stop",
    "pad_token_id": "transformers refuses it as padding",
}
PADDING_HARM = "generate of transformers stops with an IndexError once an answer of a batch ends before the others"
LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
FRAMING_ROLES = ("cls_token", "sep_token")


@rule("TOK009", "special-token-unknown", severity="error", on="tokenizer")
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    from ckptcheck.checkpoint.embedding_table import find_embedding_table

    is_language_model = ckpt.config is not None and (ckpt.config.architecture or "").endswith(LANGUAGE_MODELS)
    table = find_embedding_table(ckpt) if not ckpt.is_partial else None
    if table is not None and is_language_model:
        yield from _find_ids_beyond(ckpt.tokenizer, table.rows)
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


def _find_ids_beyond(tokenizer: Tokenizer, rows: int) -> Iterator[Problem]:
    """Yield the ids in the configs for which the embedding has no row."""
    for file in ("config.json", "generation_config.json"):
        for name, harm in HARM_OF_IDS.items():
            if (file, name) == ("generation_config.json", "pad_token_id"):
                harm = PADDING_HARM
            ids = [role.id for role in tokenizer.id_roles if (role.file, role.name) == (file, name)]
            known = [number for number in ids if number is not None]
            if known and min(known) >= rows:
                yield Problem(
                    f"{name} is {min(known):,}, but the model has rows for {rows:,} tokens; {harm}",
                    file=file,
                    key=name,
                    hint="write the ids of this model's tokenizer",
                )
