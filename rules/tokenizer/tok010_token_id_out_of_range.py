"""A config gives a special token an id that the model has no row for.

## What it checks
`bos_token_id`, `eos_token_id` and `pad_token_id` of config.json and generation_config.json are smaller than the number of rows of
the embedding. Of several ends, one is enough. Negative ids are left out: older models write them for "none".

## Why it matters
- transformers refuses to build most models whose `pad_token_id` in config.json lies beyond the embedding (`Padding_idx must be
  within num_embeddings`). With one in generation_config.json `generate` raises an IndexError as soon as one answer of a batch ends
  before the others.
- An end beyond the embedding never comes, so `generate` does not stop. A beginning beyond it is an IndexError.

Usually the ids are defaults of the config's class, or the vocabulary was cut.

## How to fix
Write the ids of this model's tokenizer.

## When it can be wrong
A model may keep such ids for another part than the language model. The rule judges only language models with a tokenizer.

## Seen in
GaiZhenbiao/Phi3V-Finetuning#12
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import TokenizedCheckpoint

PADDING_HARM = "generate of transformers stops with an IndexError once an answer of a batch ends before the others"
HARM = {
    "bos_token_id": "generation without a prompt starts with an IndexError",
    "eos_token_id": "it never comes, so generation does not stop",
    "pad_token_id": "transformers refuses it as padding",
}
LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


@rule(
    "TOK010",
    "token-id-out-of-range",
    severity="error",
    on="tokenizer",
    when=lambda ckpt: (
        ckpt.config is not None and (ckpt.config.architecture or "").endswith(LANGUAGE_MODELS) and not ckpt.is_partial
    ),
)
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    from ckptcheck.checkpoint.embedding_table import find_embedding_table

    table = find_embedding_table(ckpt)
    if table is None:
        return
    for file in ("config.json", "generation_config.json"):
        for name, harm in HARM.items():
            if (file, name) == ("generation_config.json", "pad_token_id"):
                harm = PADDING_HARM
            ids = [role.id for role in ckpt.tokenizer.id_roles if (role.file, role.name) == (file, name)]
            known = [number for number in ids if number is not None]
            if known and min(known) >= table.rows:
                yield Problem(
                    f"{name} is {min(known):,}, but the model has rows for {table.rows:,} tokens; {harm}",
                    file=file,
                    key=name,
                    hint="write the ids of this model's tokenizer",
                )
