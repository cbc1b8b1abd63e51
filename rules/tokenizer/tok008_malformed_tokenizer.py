"""The tokenizer's files cannot be loaded.

## What it checks
- The library `tokenizers` loads tokenizer.json.
- tokenizer_config.json, special_tokens_map.json and added_tokens.json are JSON objects. The last two are left out if
  tokenizer_config.json has `added_tokens_decoder`, because no consumer reads them then.
- Without a tokenizer.json, the SentencePiece model (tokenizer.model, spiece.model, …) is whole, and each line of a tiktoken
  file has a token in base64 and a rank of its own. tekken.json has the tokens that mistral-common asks for.
- Each line of merges.txt names two tokens of vocab.json that make a third one there, for the classes that the library
  `tokenizers` builds from the two files.

## Why it matters
`AutoTokenizer` of transformers stops at the start, and with it vLLM, SGLang and every trainer. The library names neither the
file nor what is wrong with it.

## How to fix
Save the tokenizer again, or copy its files from the model this one was made from.

## When it can be wrong
A file of a newer `tokenizers` may hold what the installed version does not know. Upgrade and scan again.

## Seen in
allenai/open-instruct#738, huggingface/transformers#31789, kvcache-ai/ktransformers#433
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import TokenizedCheckpoint
from ckptcheck.consumers.paired_tokenizers import reads_pair

if TYPE_CHECKING:
    from ckptcheck.checkpoint.vocabulary import Vocabulary

OTHER_RULES = ("lfs-pointer", "html-page", "no-vocabulary")
"""Kinds of defects that ST014 reports, and the one that the trial and the pair of files show below."""
HINT = "save the tokenizer again, or copy its files from the model this one was made from"


@rule("TOK008", "malformed-tokenizer", severity="error", on="tokenizer")
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    for file, defects in ckpt.tokenizer.defects.items():
        if file != "generation_config.json" and defects and defects[0].kind not in OTHER_RULES:
            yield Problem(defects[0].text, file=file, key=defects[0].key, hint=HINT)
    vocabulary = ckpt.tokenizer.vocabulary
    if vocabulary is not None and vocabulary.file == "vocab.json":
        yield from _check_pair(ckpt, vocabulary)
    trial = ckpt.tokenizer.trial
    if trial is not None and trial.refusal is not None:
        yield Problem(f"the library tokenizers does not load it: {trial.refusal}", file="tokenizer.json", hint=HINT)


def _check_pair(ckpt: TokenizedCheckpoint, vocabulary: Vocabulary) -> Iterator[Problem]:
    """Yield why the library tokenizers refuses vocab.json and merges.txt, if the tokenizer is read from them."""
    from ckptcheck.checkpoint.vocabulary import find_merge_fault

    settings, config = ckpt.tokenizer.tokenizer_config, ckpt.config
    class_name = settings.value.get("tokenizer_class") if settings is not None else None
    if ckpt.tokenizer.has_own_code or not reads_pair(class_name, config.model_type if config is not None else None):
        return
    if any(defect.kind == "no-vocabulary" for defect in vocabulary.defects):
        yield Problem(vocabulary.defects[0].text, file="vocab.json", key=vocabulary.defects[0].key, hint=HINT)
    elif vocabulary.readable and (fault := find_merge_fault(ckpt.source, vocabulary)) is not None:
        yield Problem(f"the library tokenizers does not load it: {fault}", file="merges.txt", hint=HINT)
