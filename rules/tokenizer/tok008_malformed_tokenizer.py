"""The tokenizer's files cannot be loaded.

## What it checks
- The library `tokenizers` loads tokenizer.json.
- tokenizer_config.json, special_tokens_map.json and generation_config.json are JSON objects. special_tokens_map.json is left out if
  tokenizer_config.json has `added_tokens_decoder`, because no consumer reads it then.

## Why it matters
- `AutoTokenizer` of transformers stops at the start, and with it vLLM, SGLang and every trainer. The library names neither the file
  nor what is wrong with it.
- A generation_config.json that is not JSON stops no consumer: transformers and vLLM take the ends from config.json without a
  warning, and SGLang goes on without the file. The ends and the sampling settings of its author are lost.

## How to fix
Save the tokenizer again, or copy its files from the model this one was made from.

## When it can be wrong
A file of a newer `tokenizers` may hold what the installed version does not know. Upgrade and scan again.

## Seen in
allenai/open-instruct#738, huggingface/transformers#31789, kvcache-ai/ktransformers#433
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import TokenizedCheckpoint

OTHER_RULES = ("lfs-pointer", "html-page")
"""Kinds of defects that ST014 and ST015 report."""


@rule("TOK008", "malformed-tokenizer", severity="error", on="tokenizer")
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    from ckptcheck.checkpoint.vocabulary import tokenizer_load_error

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
    vocabulary = ckpt.tokenizer.vocabulary
    if vocabulary is None or vocabulary.file != "tokenizer.json":
        return
    if vocabulary.readable or any(defect.kind == "no-vocabulary" for defect in vocabulary.defects):
        reason = tokenizer_load_error(ckpt.source)
        if reason is not None:
            yield Problem(f"the library tokenizers does not load it: {reason}", file="tokenizer.json", hint=hint)
