"""Generation stops at another token than the tokenizer's eos_token, or at none.

## What it checks
- The tokenizer's `eos_token` is among the `eos_token_id` of generation_config.json (of config.json if there is no such file), or
  one of these ids ends the assistant's turn in the chat template. The first token of the next turn counts as such an end only if
  the template writes no other (GLM).
- generation_config.json names an end. It is reported with `null`, `[]`, a negative id or no entry, if config.json or a language
  model's tokenizer has one: transformers asks neither then.

It says nothing of a class of transformers that generates no text (CLIP, BERT, a reward model), unless there is a
generation_config.json.

The rule finds the `eos_token` as transformers does: special_tokens_map.json overrides tokenizer_config.json, unless that has
`added_tokens_decoder`; then transformers does not read special_tokens_map.json at all.

## Why it matters
Each consumer asks another file:
- `generate` of transformers stops at the ids of generation_config.json only, and else runs on to the longest length.
- Trainers take the tokenizer's `eos_token` to find where an answer ends. They mask it wrongly, and never give a reward for finished
  answers.
- vLLM and SGLang take both, so a rollout looks right.

## How to fix
Write the id of the token with which the model was trained to end into both files, or a list that contains it into
generation_config.json.

## When it can be wrong
- A model may end a document and a turn with different tokens. The rule reports nothing if generation_config.json has the one that
  ends a turn in the template (Kimi K2), or lists both (Llama 3, Qwen2.5, Gemma).
- A model whose own code always passes the ends to `generate` needs none in generation_config.json.

## Seen in
QwenLM/Qwen3#927, Blaizzy/mlx-vlm#2112
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.views import TokenizedCheckpoint
from ckptcheck.linter.rule import Skip

if TYPE_CHECKING:
    from ckptcheck.checkpoint.tokenizer import Tokenizer


LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
HINT = "give both the token with which the model was trained to end, or list it beside the other"


@rule(
    "TOK003",
    "eos-disagreement",
    severity="warning",
    on="tokenizer",
    when=lambda ckpt: not ckpt.is_partial,
)
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    tokenizer = ckpt.tokenizer
    if (problem := _check_missing_end(ckpt)) is not None:
        yield problem
        return
    if not _may_generate(ckpt):
        return
    file, own = tokenizer.generation_file, tokenizer.eos_role
    stops = {number for number in tokenizer.eos_ids(file) if number >= 0}
    if not stops or own is None:
        return
    if own.id is None:
        # If the vocabulary is known, it has no such token, and TOK009 reports that.
        tokenizer.require_vocabulary()
        return
    if own.id in stops:
        return
    try:
        ends = {tokenizer.ids[token] for token in tokenizer.turn_end_tokens if token in tokenizer.ids}
    except Skip:
        ends = set()
    if not ends & stops:
        yield Problem(
            f"generation ends at {_format_ids(tokenizer, stops)}, but the tokenizer's eos_token is "
            f"{clip(own.token or '', 40)} ({own.id:,})",
            file=file,
            key="eos_token_id",
            hint=HINT,
        )


def _may_generate(ckpt: TokenizedCheckpoint) -> bool:
    """Whether some class may generate with the model.

    transformers writes a generation_config.json beside each model that can; without that file, its own classes show it.
    The config of CLIP has an `eos_token_id` from before its class needed it, and nothing is generated.
    """
    config = ckpt.config
    if ckpt.tokenizer.generation_file != "config.json" or config is None or config.resolved is None:
        return True
    return config.architecture is None or config.architecture.endswith(LANGUAGE_MODELS)


def _check_missing_end(ckpt: TokenizedCheckpoint) -> Problem | None:
    """Return the problem if the file that transformers asks names no end, and another one does."""
    tokenizer = ckpt.tokenizer
    file, own = tokenizer.generation_file, tokenizer.eos_role
    stops = tokenizer.eos_ids(file)
    if max(stops, default=-1) >= 0 or not (stops or file == "generation_config.json"):
        return None
    settings = tokenizer.generation_config.value if tokenizer.generation_config is not None and not stops else {}
    if stops:
        text = f"eos_token_id is {min(stops)}, which is not a token"
    elif "eos_token_id" not in settings:
        text = "there is no eos_token_id"
    elif settings["eos_token_id"] in (None, []):
        text = f"eos_token_id is {json.dumps(settings['eos_token_id'])}"
    else:
        # A setting of another type stops whoever reads it.
        return None
    elsewhere = {number for number in tokenizer.eos_ids("config.json") if number >= 0}
    architecture = (ckpt.config.architecture if ckpt.config is not None else None) or ""
    if not architecture.endswith(LANGUAGE_MODELS) or not (
        elsewhere or stops or architecture.endswith(LANGUAGE_MODELS[:2])
    ):
        # Some composite models write sounds, and their tokenizer's end belongs to the words that they read (Musicgen).
        return None
    if own is not None:
        other = f"the tokenizer's eos_token is {clip(own.token or '', 40)}" + (
            f" ({own.id:,})" if own.id is not None else ""
        )
    elif elsewhere and file != "config.json":
        other = f"config.json, which transformers does not ask then, has {_format_ids(tokenizer, elsewhere)}"
    else:
        return None
    return Problem(
        f"{text}: generate of transformers runs on to the longest length; {other}",
        file=file,
        key="eos_token_id",
        hint="write the token with which the model was trained to end",
    )


def _format_ids(tokenizer: Tokenizer, numbers: Iterable[int]) -> str:
    return ", ".join(
        f"{number:,}" + (f" ({clip(name, 40)})" if (name := tokenizer.token_for(number)) else "")
        for number in sorted(numbers)[:4]
    )
