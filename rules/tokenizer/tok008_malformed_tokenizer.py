"""The tokenizer's files cannot be loaded.

## What it checks
The library `tokenizers` loads tokenizer.json, and tokenizer_config.json, special_tokens_map.json and
generation_config.json are JSON objects. special_tokens_map.json is passed over where tokenizer_config.json has
`added_tokens_decoder`, since nobody reads it then.

## Why it matters
`AutoTokenizer` of transformers, and with it vLLM, SGLang and every trainer, stops at the start. The library names neither
the file nor what is wrong with it. A generation_config.json that is not JSON stops nobody: transformers and vLLM take the
ends from config.json without a word and SGLang goes on without the file, so the ends and the sampling that its author wrote
are lost.

## How to fix
Save the tokenizer again, or copy its files from the model this one was made from.

## When it can be wrong
A file that a newer `tokenizers` wrote may hold what the installed one does not know; upgrade and scan again.

## Seen in
allenai/open-instruct#738, huggingface/transformers#31789, kvcache-ai/ktransformers#433
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint

SAID_ELSEWHERE = ("lfs-pointer", "html-page")  # ST014, ST015


@rule("TOK008", "malformed-tokenizer", severity="error", when=lambda ckpt: ckpt.tokenizer is not None)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    from ckptcheck.checkpoint.vocabulary import loading_error

    assert ckpt.tokenizer is not None
    hint = "save the tokenizer again, or copy its files from the model this one was made from"
    defects = ckpt.tokenizer.defects
    for file, found in defects.items():
        if found and found[0].kind not in (*SAID_ELSEWHERE, "no-vocabulary"):
            text, advice = found[0].text, hint
            if file == "generation_config.json":
                advice = "write it again, or copy it from the model this one was made from"
                if found[0].kind == "not-json":
                    text += "; transformers, vLLM and SGLang go on without it, and what it says of ends and sampling is lost"
            yield Problem(text, file=file, key=found[0].key, hint=advice)
    vocabulary = ckpt.tokenizer.vocabulary
    if vocabulary is None or vocabulary.file != "tokenizer.json":
        return
    if vocabulary.readable or any(defect.kind == "no-vocabulary" for defect in vocabulary.defects):
        reason = loading_error(ckpt.source)
        if reason is not None:
            yield Problem(f"the library tokenizers does not load it: {reason}", file="tokenizer.json", hint=hint)
