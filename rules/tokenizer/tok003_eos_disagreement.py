"""Generation stops at another token than the one the tokenizer calls the end, or at none.

## What it checks
The `eos_token` of the tokenizer is among the `eos_token_id` of generation_config.json (of config.json where there is no
such file), or what is there ends the assistant's turn in the chat template. The first token of the next turn is such an
end only where the template writes no other (GLM).

A generation_config.json that names no end (`null`, `[]`, a negative id, or nothing) is reported where config.json has one,
or a language model's tokenizer: transformers asks neither then.

Which `eos_token` the tokenizer has is decided as transformers does it: special_tokens_map.json overrides
tokenizer_config.json, unless that has `added_tokens_decoder`; then special_tokens_map.json is not read at all.

## Why it matters
Each consumer asks another file. `generate` of transformers stops at generation_config.json alone and runs on to the
longest length; trainers take the tokenizer's `eos_token` to find where an answer ends, mask it wrongly, and a reward for
finished answers is never given. vLLM and SGLang take both, so in a rollout all looks well.

## How to fix
Write the id of the token with which the model was trained to end into both, or a list that has it into
generation_config.json.

## When it can be wrong
A model may end a document and a turn with different tokens. Where generation_config.json has the one that the template
ends a turn with (Kimi K2), or lists both (Llama 3, Qwen2.5, Gemma), nothing is said. A model whose own code always gives
`generate` the ends needs none in generation_config.json.

## Seen in
QwenLM/Qwen3#927, Blaizzy/mlx-vlm#2112
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.document import clipped
from ckptcheck.checkpoint.special_tokens import content
from ckptcheck.rule import Skip

if TYPE_CHECKING:
    from ckptcheck.checkpoint.tokenizer import Tokenizer


WITH_HEAD = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
OLDER = "special_tokens_map.json"
WITHOUT_DEFAULTS = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes of tokenizers that have no eos_token of their own."""
HINT = "give both the token with which the model was trained to end, or list it beside the other"


@rule(
    "TOK003",
    "eos-disagreement",
    severity="warning",
    when=lambda ckpt: ckpt.tokenizer is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    tokenizer = ckpt.tokenizer
    assert tokenizer is not None
    if (without := _no_end(ckpt)) is not None:
        yield without
        return
    file, own = tokenizer.generation_file, tokenizer.tokenizer_eos
    stops = {number for number in tokenizer.eos(file) if number >= 0}
    if (unread := _not_read(tokenizer)) is not None and stops:
        yield unread
    if not stops or own is None:
        return
    if own.id is None:
        tokenizer.require_vocabulary()  # it is known and has no such token: TOK009
        return
    if own.id in stops:
        return
    other = (
        content(tokenizer.tokenizer_config.value.get("eos_token")) if tokenizer.tokenizer_config is not None else None
    )
    if own.file == OLDER and other not in (None, own.token):
        yield Problem(
            f"transformers takes {clipped(own.token or '', 40)} ({own.id:,}) from here as eos_token, not "
            f"{clipped(other or '', 40)} of tokenizer_config.json; generation ends at {_listed(tokenizer, stops)}",
            file=OLDER,
            key="eos_token",
            hint=HINT,
        )
        return
    try:
        ends = {tokenizer.ids[token] for token in tokenizer.after_answer if token in tokenizer.ids}
    except Skip:
        ends = set()
    if not ends & stops:
        yield Problem(
            f"generation ends at {_listed(tokenizer, stops)}, but the tokenizer's eos_token is "
            f"{clipped(own.token or '', 40)} ({own.id:,})",
            file=file,
            key="eos_token_id",
            hint=HINT,
        )


def _not_read(tokenizer: Tokenizer) -> Problem | None:
    """The one eos_token where it stands only in special_tokens_map.json, and transformers does not read that."""
    if tokenizer.tokenizer_eos is not None or not tokenizer.is_declared or tokenizer.special_tokens_map is None:
        return None
    assert tokenizer.tokenizer_config is not None
    if tokenizer.tokenizer_config.value.get("tokenizer_class") not in WITHOUT_DEFAULTS:
        return None
    token = content(tokenizer.special_tokens_map.value.get("eos_token"))
    if token is None:
        return None
    return Problem(
        f"eos_token is {clipped(token, 40)} here, but transformers does not read this file where tokenizer_config.json has "
        "added_tokens_decoder: the tokenizer has no eos_token",
        file=OLDER,
        key="eos_token",
        hint="name it in tokenizer_config.json",
    )


def _no_end(ckpt: Checkpoint) -> Problem | None:
    """What is wrong where the file that counts names no end, and another one does."""
    tokenizer = ckpt.tokenizer
    assert tokenizer is not None
    file, own = tokenizer.generation_file, tokenizer.tokenizer_eos
    stops = tokenizer.eos(file)
    if max(stops, default=-1) >= 0 or not (stops or file == "generation_config.json"):
        return None
    given = tokenizer.generation_config.value if tokenizer.generation_config is not None and not stops else {}
    if stops:
        said = f"eos_token_id is {min(stops)}, which is no token"
    elif "eos_token_id" not in given:
        said = "there is no eos_token_id"
    elif given["eos_token_id"] in (None, []):
        said = f"eos_token_id is {json.dumps(given['eos_token_id'])}"
    else:
        return None  # TOK010
    elsewhere = {number for number in tokenizer.eos("config.json") if number >= 0}
    architecture = (ckpt.config.architecture if ckpt.config is not None else None) or ""
    if not architecture.endswith(WITH_HEAD) or not (elsewhere or stops or architecture.endswith(WITH_HEAD[:2])):
        return None  # of composite models some write sounds, and the tokenizer's end is that of the words they read (Musicgen)
    if own is not None:
        other = f"the tokenizer's eos_token is {clipped(own.token or '', 40)}" + (
            f" ({own.id:,})" if own.id is not None else ""
        )
    elif elsewhere and file != "config.json":
        other = f"config.json, which is not asked then, has {_listed(tokenizer, elsewhere)}"
    else:
        return None
    return Problem(
        f"{said}: generate of transformers runs on to the longest length; {other}",
        file=file,
        key="eos_token_id",
        hint="write the token with which the model was trained to end",
    )


def _listed(tokenizer: Tokenizer, numbers: Iterable[int]) -> str:
    return ", ".join(
        f"{number:,}" + (f" ({clipped(name, 40)})" if (name := tokenizer.name(number)) else "")
        for number in sorted(numbers)[:4]
    )
