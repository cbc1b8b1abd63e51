"""A config gives a special token an id that the model has no row for, or that is no id.

## What it checks
`bos_token_id`, `eos_token_id` and `pad_token_id` of config.json and generation_config.json are smaller than the number of
rows of the embedding; of several ends, one is. Negative ids, with which older models say that there is none, are left.
In generation_config.json each of them is a whole number (of ends, a list is as good), not a text or a fraction.

## Why it matters
transformers refuses to build most models whose `pad_token_id` is beyond the embedding (`Padding_idx must be within
num_embeddings`) in config.json; with one in generation_config.json `generate` stops with an IndexError as soon as one
answer of a batch ends before the others. An end beyond it never comes, so `generate` does not stop; a beginning beyond it
is an IndexError. A text, even `"2"`, is a TypeError in `generate`, a fraction, even `2.0`, one in vLLM.
Mostly the ids are defaults of the config's class, or the vocabulary was cut.

## How to fix
Write the ids of this model's tokenizer.

## When it can be wrong
Models that keep such ids for another part than the language model. Only language models with a tokenizer are looked at.

## Seen in
GaiZhenbiao/Phi3V-Finetuning#12
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isfinite
from typing import TYPE_CHECKING

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.document import clipped

if TYPE_CHECKING:
    from ckptcheck.checkpoint.tokenizer import Tokenizer

PADDED = "generate of transformers stops with an IndexError once an answer of a batch ends before the others"
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
    yield from _no_ids(ckpt.tokenizer)
    table = table_of(ckpt)
    if table is None:
        return
    for file in ("config.json", "generation_config.json"):
        for name, harm in HARM.items():
            if (file, name) == ("generation_config.json", "pad_token_id"):
                harm = PADDED
            ids = [role.id for role in ckpt.tokenizer.settings if (role.file, role.name) == (file, name)]
            known = [number for number in ids if number is not None]
            if known and min(known) >= table.rows:
                yield Problem(
                    f"{name} is {min(known):,}, but the model has rows for {table.rows:,} tokens; {harm}",
                    file=file,
                    key=name,
                    hint="write the ids of this model's tokenizer",
                )


def _no_ids(tokenizer: Tokenizer) -> Iterator[Problem]:
    """What generation_config.json gives in the place of ids."""
    part = tokenizer.generation_config
    for name in HARM if part is not None else ():
        given = part.value.get(name)  # type: ignore[union-attr]
        if name == "eos_token_id" and isinstance(given, float) and isfinite(given):
            harm = "vLLM stops with a TypeError at every request"
        elif _refused(given) or (name == "pad_token_id" and isinstance(given, list)):
            harm = "generate of transformers stops with an error"
        else:
            continue
        yield Problem(
            f"{name} is {clipped(json.dumps(given, ensure_ascii=False), 40)}, which is no id; {harm}",
            file="generation_config.json",
            key=name,
            hint="write the ids of this model's tokenizer",
        )


def _refused(given: object) -> bool:
    """Whether `torch.tensor(given, dtype=torch.long)` refuses it: it takes fractions and booleans, None is never given to it."""
    if isinstance(given, list):
        return any(part is None or _refused(part) for part in given if not isinstance(part, list))
    return isinstance(given, (str, dict)) or (isinstance(given, float) and not isfinite(given))
