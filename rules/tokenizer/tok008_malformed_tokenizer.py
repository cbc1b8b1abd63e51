"""The tokenizer's files cannot be loaded.

## What it checks
- The library `tokenizers` loads tokenizer.json.
- tokenizer_config.json, special_tokens_map.json and added_tokens.json are JSON objects. The last two are left out if
  tokenizer_config.json has `added_tokens_decoder`, because no consumer reads them then.
- Without a tokenizer.json, the SentencePiece model (tokenizer.model, spiece.model, …) is whole.

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

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import TokenizedCheckpoint

OTHER_RULES = ("lfs-pointer", "html-page", "no-vocabulary")
"""Kinds of defects that ST014 reports, and the one that the trial shows below."""
HINT = "save the tokenizer again, or copy its files from the model this one was made from"


@rule("TOK008", "malformed-tokenizer", severity="error", on="tokenizer")
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    for file, defects in ckpt.tokenizer.defects.items():
        if defects and defects[0].kind not in OTHER_RULES:
            yield Problem(defects[0].text, file=file, key=defects[0].key, hint=HINT)
    if (refusal := ckpt.tokenizer.refusal) is not None:
        yield Problem(f"the library tokenizers does not load it: {refusal}", file="tokenizer.json", hint=HINT)
