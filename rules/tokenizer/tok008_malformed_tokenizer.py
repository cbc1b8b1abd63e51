"""The tokenizer's files cannot be loaded, or no file has its tokens.

## What it checks
- The library `tokenizers` loads tokenizer.json.
- tokenizer_config.json, special_tokens_map.json and added_tokens.json are JSON objects. The last two are left out if
  tokenizer_config.json has `added_tokens_decoder`, because no consumer reads them then.
- Without a tokenizer.json, the SentencePiece model (tokenizer.model, spiece.model, …) is whole.
- Beside a tokenizer_config.json there is a file with tokens that the class it names reads: for `PreTrainedTokenizerFast` and
  `TokenizersBackend` tokenizer.json, or a SentencePiece, tiktoken or tekken file; for other classes any file that may hold a
  vocabulary. Classes of the repository's own code (`auto_map`, tokenization_*.py) or without a vocabulary (ByT5, Canine, Perceiver,
  Dia), and adapters are left out, and so are folders without a tokenizer_config.json: a checkpoint needs no tokenizer.

## Why it matters
`AutoTokenizer` of transformers stops at the start, and with it vLLM, SGLang and every trainer. The library names neither the
file nor what is wrong with it. Without tokens, classes that build their model themselves (Llama, Qwen2, GPT-2, Gemma, BERT) do not
stop in transformers 5: they make a tokenizer of the special tokens alone, which turns every text into nothing.

## How to fix
Save the tokenizer again, or copy its files from the model this one was made from.

## When it can be wrong
A file of a newer `tokenizers` may hold what the installed version does not know. Upgrade and scan again. A class that a plugin
registers, without `auto_map`, may read a file of another name, or none.

## Seen in
allenai/open-instruct#738, huggingface/transformers#15136, huggingface/transformers#31789, kvcache-ai/ktransformers#433
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.views import TokenizedCheckpoint

OTHER_RULES = ("lfs-pointer", "html-page", "no-vocabulary")
"""Kinds of defects that ST014 reports, and the one that the trial shows below."""
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes that need tokenizer.json, or a file that transformers converts to it."""
FILELESS_CLASSES = (
    "ByT5Tokenizer",
    "CanineTokenizer",
    "DiaTokenizer",
    "PerceiverTokenizer",
    "EsmcTokenizer",
    "RagTokenizer",
)
FILELESS_MODELS = ("byt5", "canine", "dia", "perceiver", "esmc", "esmfold2", "rag")
"""Model types that need no file, because their tokens are bytes, characters or a fixed alphabet, or have tokenizers in folders."""
CONVERTIBLE = re.compile(
    r"tokenizer\.json|tekken\.json|.*\.model(\..+)?|.*\.(tiktoken|gguf|spm)|tokeniz.*\.py", re.DOTALL
)
VOCABULARY = re.compile(r".*vocab.*|encoder\.json|dict\.txt|.*\.(codes|tokenizer|bpe|vocab)|byte_maps\.json", re.DOTALL)
HINT = "save the tokenizer again, or copy its files from the model this one was made from"


@rule("TOK008", "malformed-tokenizer", severity="error", on="tokenizer")
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    for file, defects in ckpt.tokenizer.defects.items():
        if defects and defects[0].kind not in OTHER_RULES:
            yield Problem(defects[0].text, file=file, key=defects[0].key, hint=HINT)
    if (refusal := ckpt.tokenizer.refusal) is not None:
        yield Problem(f"the library tokenizers does not load it: {refusal}", file="tokenizer.json", hint=HINT)
    if not ckpt.is_partial:
        yield from _check_missing(ckpt)


def _check_missing(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    """Yield the lack of any file with tokens."""
    config = ckpt.tokenizer.tokenizer_config
    if config is None or not config.readable or "auto_map" in config.value:
        return
    class_name = config.value.get("tokenizer_class")
    model_type = ckpt.config.model_type if ckpt.config is not None else None
    if any(CONVERTIBLE.fullmatch(file) for file in ckpt.files) or (
        not isinstance(class_name, str) and model_type in FILELESS_MODELS
    ):
        return
    name = class_name.removesuffix("Fast") if isinstance(class_name, str) else ""
    is_generic = class_name in GENERIC
    if name in FILELESS_CLASSES or (not is_generic and any(VOCABULARY.fullmatch(file) for file in ckpt.files)):
        return
    harm = "refuses it" if is_generic else "refuses it, or makes a tokenizer that knows its special tokens and no words"
    class_text = f"names {clip(class_name, 40)}" if isinstance(class_name, str) else "names no class"
    missing_text = "there is no tokenizer.json" if is_generic else "no file here holds the tokens"
    yield Problem(
        f"it {class_text}, and {missing_text}: AutoTokenizer of transformers {harm}",
        file=config.file,
        key="tokenizer_class" if isinstance(class_name, str) else None,
        hint="copy tokenizer.json from the model this one was made from, or save the tokenizer again",
    )
