"""A config gives a special token an id that the model has no row for.

## What it checks
`bos_token_id`, `eos_token_id` and `pad_token_id` of config.json and generation_config.json are smaller than the number of
rows of the embedding; of several ends, one is. Negative ids, with which older models say that there is none, are left.

## Why it matters
transformers refuses to build most models whose `pad_token_id` is beyond the embedding (`Padding_idx must be within
num_embeddings`); an end beyond it never comes, so `generate` does not stop; a beginning beyond it is an IndexError.
Mostly the ids are defaults of the config's class, or the vocabulary was cut.

## How to fix
Write the ids of this model's tokenizer.

## When it can be wrong
Models that keep such ids for another part than the language model. Only language models with a tokenizer are looked at.

## Seen in
GaiZhenbiao/Phi3V-Finetuning#12
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint

HARM = {
    "bos_token_id": "generation without a prompt starts with an IndexError",
    "eos_token_id": "it never comes, so generation does not stop",
    "pad_token_id": "transformers refuses it as padding",
}
WITH_HEAD = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


@rule(
    "TOK010",
    "token-id-out-of-range",
    severity="error",
    when=lambda ckpt: (
        ckpt.tokenizer is not None
        and ckpt.config is not None
        and (ckpt.config.architecture or "").endswith(WITH_HEAD)
        and not ckpt.is_partial
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    from ckptcheck.checkpoint.vocabulary import table_of

    assert ckpt.tokenizer is not None
    table = table_of(ckpt)
    if table is None:
        return
    for file in ("config.json", "generation_config.json"):
        for name, harm in HARM.items():
            ids = [role.id for role in ckpt.tokenizer.settings if (role.file, role.name) == (file, name)]
            known = [number for number in ids if number is not None]
            if known and min(known) >= table.rows:
                yield Problem(
                    f"{name} is {min(known):,}, but the model has rows for {table.rows:,} tokens; {harm}",
                    file=file,
                    key=name,
                    hint="write the ids of this model's tokenizer",
                )
