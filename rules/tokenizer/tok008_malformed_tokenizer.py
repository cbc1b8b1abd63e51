"""The tokenizer's files cannot be loaded.

## What it checks
- The library `tokenizers` loads tokenizer.json, and encodes a text of rare characters, which no vocabulary has.
- Each token that a template of the post-processor puts around texts is described beside it, in `special_tokens`.
- tokenizer_config.json, special_tokens_map.json and generation_config.json are JSON objects. special_tokens_map.json is left out if
  tokenizer_config.json has `added_tokens_decoder`, because no consumer reads it then.
- Without a tokenizer.json, the SentencePiece model (tokenizer.model, spiece.model, …) is whole, and each line of a tiktoken file
  has a token in base64 and a rank of its own. tekken.json has the tokens that mistral-common asks for.
- Each line of merges.txt names two tokens of vocab.json that make a third one there, for the classes that the library `tokenizers`
  builds from the two files.
- added_tokens.json, if transformers reads it, gives each token an id.
- The special tokens of tokenizer_config.json, and of special_tokens_map.json where that overrides it, are texts, or objects with
  one; those of tokenizer_config.json with `"__type": "AddedToken"` too. `pad_token` is no empty text (a warning). Other settings
  of tokenizer_config.json have the types and words that transformers takes (`model_max_length` a number, `padding_side` left or
  right, added tokens under integers, and so on).

## Why it matters
- `AutoTokenizer` of transformers stops at the start, and with it vLLM, SGLang and every trainer. The library names neither the file
  nor what is wrong with it.
- A tokenizer without bytes and without a token for what is unknown (`unk_token`, `unk_id`) stops with an exception at the first
  character that its vocabulary lacks: a request of a user, or a step of the training.
- A framing token that `special_tokens` does not describe ends `tokenizers` at every text, with a panic that names no token.
- A generation_config.json that is not JSON stops no consumer: transformers and vLLM take the ends from config.json without a
  warning, and SGLang goes on without the file. The ends and the sampling settings of its author are lost.

## How to fix
Save the tokenizer again, or copy its files from the model this one was made from.

## When it can be wrong
A file of a newer `tokenizers` may hold what the installed version does not know. Upgrade and scan again. An alphabet without a
token for the unknown is right where nothing else can come, as for molecules; some classes of transformers bring their own.

## Seen in
allenai/open-instruct#738, huggingface/transformers#31789, kvcache-ai/ktransformers#433
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.special_tokens import NAMES
from ckptcheck.checkpoint.views import TokenizedCheckpoint
from ckptcheck.consumers.paired_tokenizers import reads_pair
from ckptcheck.consumers.tokenizer_settings import list_refused_settings

if TYPE_CHECKING:
    from ckptcheck.checkpoint.tokenizer import Tokenizer
    from ckptcheck.checkpoint.vocabulary import Vocabulary

OTHER_RULES = ("lfs-pointer", "html-page")
"""Kinds of defects that ST014 reports."""


@rule("TOK008", "malformed-tokenizer", severity="error", on="tokenizer")
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    from ckptcheck.checkpoint.vocabulary import try_tokenizer

    hint = "save the tokenizer again, or copy its files from the model this one was made from"
    defects = ckpt.tokenizer.defects
    for file, file_defects in defects.items():
        if file_defects and file_defects[0].kind not in (*OTHER_RULES, "no-vocabulary"):
            text, advice = file_defects[0].text, hint
            if file == "generation_config.json":
                advice = "write it again, or copy it from the model this one was made from"
                if file_defects[0].kind == "not-json":
                    text += "; transformers, vLLM and SGLang go on without it and lose its ends and sampling settings"
            yield Problem(text, file=file, key=file_defects[0].key, hint=advice)
    settings = ckpt.tokenizer.tokenizer_config
    yield from _check_special_tokens(ckpt.tokenizer, hint)
    yield from _check_added_tokens(ckpt.tokenizer, hint)
    for key, reason in list_refused_settings(settings.value) if settings is not None else ():
        yield Problem(
            f"{key} {reason}: AutoTokenizer of transformers does not load the tokenizer, or stops at the first text",
            file="tokenizer_config.json",
            key=key,
            hint=hint,
        )
    vocabulary = ckpt.tokenizer.vocabulary
    if vocabulary is not None and vocabulary.file == "vocab.json":
        yield from _check_pair(ckpt, vocabulary, hint)
    if vocabulary is None or vocabulary.file != "tokenizer.json":
        return
    for framing in vocabulary.framing:
        if framing.ids is None:
            yield Problem(
                f"the post-processor puts {clip(framing.token, 40)} around texts, and its special_tokens do not describe it: the "
                "library tokenizers panics at every text",
                file="tokenizer.json",
                key=framing.key,
                hint=hint,
            )
    if vocabulary.readable or any(defect.kind == "no-vocabulary" for defect in vocabulary.defects):
        trial = try_tokenizer(ckpt.source)
        if trial.refusal is not None:
            yield Problem(f"the library tokenizers does not load it: {trial.refusal}", file="tokenizer.json", hint=hint)
        elif trial.unencodable is not None:
            yield Problem(
                f"the library tokenizers stops at a character that the vocabulary lacks: {trial.unencodable}",
                file="tokenizer.json",
                key="model",
                severity="warning",
                hint="name the token for unknown characters: unk_token, or unk_id of a Unigram model",
            )


def _check_pair(ckpt: TokenizedCheckpoint, vocabulary: Vocabulary, hint: str) -> Iterator[Problem]:
    """Yield why the library tokenizers refuses vocab.json and merges.txt, where the tokenizer is read from them."""
    from ckptcheck.checkpoint.vocabulary import find_merge_fault

    settings, config = ckpt.tokenizer.tokenizer_config, ckpt.config
    class_name = settings.value.get("tokenizer_class") if settings is not None else None
    if ckpt.tokenizer.has_own_code or not reads_pair(class_name, config.model_type if config is not None else None):
        return
    if any(defect.kind == "no-vocabulary" for defect in vocabulary.defects):
        yield Problem(vocabulary.defects[0].text, file="vocab.json", key=vocabulary.defects[0].key, hint=hint)
    elif vocabulary.readable and (fault := find_merge_fault(ckpt.source, vocabulary)) is not None:
        yield Problem(f"the library tokenizers does not load it: {fault}", file="merges.txt", hint=hint)


def _check_special_tokens(tokenizer: Tokenizer, hint: str) -> Iterator[Problem]:
    """Yield the special tokens that are neither a text nor an object with one, and an empty padding.

    special_tokens_map.json overrides tokenizer_config.json where transformers reads it, and may set a token to null.
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
                hint=hint,
            )


def _check_added_tokens(tokenizer: Tokenizer, hint: str) -> Iterator[Problem]:
    """Yield the tokens of added_tokens.json, where transformers reads it, that have no id."""
    older = tokenizer.older_tokens
    for token, number in older.value.items() if older is not None else ():
        if not isinstance(number, (int, float)):
            yield Problem(
                f"{clip(json.dumps(number), 40)} is no id: AutoTokenizer of transformers stops with a TypeError",
                file="added_tokens.json",
                key=clip(token, 40),
                hint=hint,
            )
            return
