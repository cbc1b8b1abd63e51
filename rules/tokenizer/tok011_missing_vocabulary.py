"""The tokenizer's settings are here, but no file with its tokens.

## What it checks
Beside a tokenizer_config.json there is a file with tokens that the class it names reads:
- for `PreTrainedTokenizerFast` and `TokenizersBackend`: tokenizer.json, or a SentencePiece, tiktoken or tekken file;
- for other classes: any file that may hold a vocabulary.

It leaves out classes that are the repository's own code (`auto_map`, tokenization_*.py) or need no vocabulary (ByT5, Canine,
Perceiver, Dia), adapters, and folders without a tokenizer_config.json: a checkpoint needs no tokenizer.

## Why it matters
`AutoTokenizer` of transformers stops at the start, and with it vLLM, SGLang and every trainer, with a message about converting slow
tokenizers. For classes that build their model themselves (Llama, Qwen2, GPT-2, Gemma, BERT) transformers 5 does not stop: it makes
a tokenizer of the special tokens alone, which turns every text into nothing.

## How to fix
Copy tokenizer.json from the model this one was made from, or save the tokenizer again.

## When it can be wrong
- A class that a plugin registers, without `auto_map`, may read a file of another name, or none.
- `--ignore TOK011`, or a reason under `[ignore]`, silences it.

## Seen in
huggingface/transformers#15136; tried with every class that transformers 5.23 knows, on a folder without tokenizer.json
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.views import TokenizedCheckpoint

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


@rule(
    "TOK011",
    "missing-vocabulary",
    severity="error",
    on="tokenizer",
    when=lambda ckpt: not ckpt.is_partial,
)
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
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
