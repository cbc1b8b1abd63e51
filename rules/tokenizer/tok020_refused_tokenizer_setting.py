"""A setting of the tokenizer has a value that AutoTokenizer of transformers refuses.

## What it checks
- The special tokens of tokenizer_config.json, and of special_tokens_map.json where that overrides it, are texts, or objects
  with one; those of tokenizer_config.json with `"__type": "AddedToken"` too.
- `pad_token` is no empty text without an `unk_token` that stands for it (a warning).
- added_tokens.json, if transformers reads it, gives each token an id.
- Other settings of tokenizer_config.json have the types and words that transformers takes: `model_max_length` is a number,
  `padding_side` is left or right, added tokens stand under integers, and so on.

## Why it matters
`AutoTokenizer` of transformers stops with a TypeError, at the start or at the first text, and with it vLLM, SGLang and every
trainer. The error names neither the file nor the setting.

## How to fix
Save the tokenizer again, or copy its files from the model this one was made from.

## When it can be wrong
Another version of transformers may take a value that 5.23, with which each was tried, refuses.

## Seen in
Each value was tried with transformers 5.23 (`tokenization_utils_base.py`, `tokenization_utils_tokenizers.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.special_tokens import NAMES
from ckptcheck.checkpoint.views import TokenizedCheckpoint
from ckptcheck.consumers.tokenizer_settings import list_refused_settings

if TYPE_CHECKING:
    from ckptcheck.checkpoint.tokenizer import Tokenizer

HINT = "save the tokenizer again, or copy its files from the model this one was made from"


@rule("TOK020", "refused-tokenizer-setting", severity="error", on="tokenizer")
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    settings = ckpt.tokenizer.tokenizer_config
    yield from _check_special_tokens(ckpt.tokenizer)
    yield from _check_added_tokens(ckpt.tokenizer)
    for key, reason in list_refused_settings(settings.value) if settings is not None else ():
        yield Problem(
            f"{key} {reason}: AutoTokenizer of transformers does not load the tokenizer, or stops at the first text",
            file="tokenizer_config.json",
            key=key,
            hint=HINT,
        )


def _check_special_tokens(tokenizer: Tokenizer) -> Iterator[Problem]:
    """Yield the special tokens that are neither a text nor an object with one, and an empty padding.

    special_tokens_map.json overrides tokenizer_config.json if transformers reads it, and may set a token to null.
    """
    config, names = tokenizer.tokenizer_config, tokenizer.older_names
    if config is not None and config.value.get("pad_token") == "" and not config.value.get("unk_token"):
        yield Problem(
            "pad_token is empty, and so has no id, and no unk_token stands for it: AutoTokenizer of transformers stops with a "
            "TypeError where it pads a batch",
            file="tokenizer_config.json",
            key="pad_token",
            severity="warning",
            hint="name a token that the tokenizer has, or remove pad_token",
        )
    for name in NAMES:
        part = next((part for part in (names, config) if part is not None and name in part.value), None)
        token, lacks = part.value[name] if part is not None else None, None
        # special_tokens_map.json makes a token of any object, if only of the empty text.
        if isinstance(token, dict) and part is config:
            is_token = token.get("__type") == "AddedToken"
            lacks = "`content`" if "content" not in token else None if is_token else '`__type` "AddedToken"'
        elif isinstance(token, (list, int, float)):
            lacks = "`content`"
        if part is not None and lacks is not None:
            yield Problem(
                f"{name} is neither a text nor an object with {lacks}: AutoTokenizer of transformers stops with a TypeError",
                file=part.file,
                key=name,
                hint=HINT,
            )


def _check_added_tokens(tokenizer: Tokenizer) -> Iterator[Problem]:
    """Yield the first token without an id in added_tokens.json, if transformers reads that file."""
    older = tokenizer.older_tokens
    for token, number in older.value.items() if older is not None else ():
        if not isinstance(number, (int, float)):
            yield Problem(
                f"{clip(json.dumps(number), 40)} is no id: AutoTokenizer of transformers stops with a TypeError",
                file="added_tokens.json",
                key=clip(token, 40),
                hint=HINT,
            )
            return
