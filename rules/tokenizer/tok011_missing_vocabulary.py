"""The tokenizer's settings are here, and no file with its tokens.

## What it checks
Where there is a tokenizer_config.json there is a file with tokens that the class it names reads: tokenizer.json or a
SentencePiece, tiktoken or tekken file for `PreTrainedTokenizerFast` and `TokenizersBackend`; any file that may hold a
vocabulary for other classes, and for those of GPT-2 and Qwen2 merges.txt with vocab.json. Nothing is said where the class is
the repository's own code (`auto_map`, tokenization_*.py), where it needs no vocabulary (ByT5, Canine, Perceiver, Dia), of
adapters, and of folders without a tokenizer_config.json: a checkpoint needs no tokenizer.

## Why it matters
`AutoTokenizer` of transformers, and with it vLLM, SGLang and every trainer, stops at the start, with a message about
converting slow tokenizers. For classes that build their model themselves (Llama, Qwen2, GPT-2, Gemma, BERT) transformers 5
does not stop: it makes a tokenizer of the special tokens alone, which turns every text into nothing.

## How to fix
Copy tokenizer.json from the model this one was made from, or save the tokenizer again.

## When it can be wrong
A class that is registered by a plugin, without `auto_map`, may read a file of another name, or none. `--ignore TOK011`, or
a reason under `[ignore]`, silences it.

## Seen in
huggingface/transformers#15136; tried with every class that transformers 5.23 knows, on a folder without tokenizer.json
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.document import clipped

GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes that are nothing without tokenizer.json, or a file that is converted to it."""
PAIRED = ("GPT2Tokenizer", "Qwen2Tokenizer")
"""Classes that take vocab.json and merges.txt together, or tokenizer.json."""
BARE = ("ByT5Tokenizer", "CanineTokenizer", "DiaTokenizer", "PerceiverTokenizer", "EsmcTokenizer", "RagTokenizer")
BARE_MODELS = ("byt5", "canine", "dia", "perceiver", "esmc", "esmfold2", "rag")
"""What needs no file: bytes, characters, a fixed alphabet; or has its tokenizers in folders."""
CONVERTED = re.compile(r"tokenizer\.json|tekken\.json|.*\.model(\..+)?|.*\.(tiktoken|gguf|spm)|tokeniz.*\.py")
VOCABULARY = re.compile(r".*vocab.*|encoder\.json|dict\.txt|.*\.(codes|tokenizer|bpe|vocab)|byte_maps\.json")


@rule(
    "TOK011",
    "missing-vocabulary",
    severity="error",
    when=lambda ckpt: ckpt.tokenizer is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.tokenizer is not None
    config = ckpt.tokenizer.tokenizer_config
    if config is None or not config.readable or "auto_map" in config.value:
        return
    named = config.value.get("tokenizer_class")
    model_type = ckpt.config.model_type if ckpt.config is not None else None
    if any(CONVERTED.fullmatch(file) for file in ckpt.files) or (
        not isinstance(named, str) and model_type in BARE_MODELS
    ):
        return
    name = named.removesuffix("Fast") if isinstance(named, str) else ""
    generic = named in GENERIC
    if name in BARE or (
        any(VOCABULARY.fullmatch(file) for file in ckpt.files) and not (generic or _is_half(ckpt, name))
    ):
        return
    harm = "refuses it"
    if not generic and not _is_half(ckpt, name):
        harm += ", or makes a tokenizer that knows its special tokens and no words"
    said = f"names {clipped(named, 40)}" if isinstance(named, str) else "names no class"
    missing = "merges.txt" if "vocab.json" in ckpt.files else "vocab.json"
    lost = "there is no tokenizer.json" if generic else "no file here holds the tokens"
    if _is_half(ckpt, name):
        lost = f"there is no {missing}, and no tokenizer.json"
    yield Problem(
        f"it {said}, and {lost}: AutoTokenizer of transformers {harm}",
        file=config.file,
        key="tokenizer_class" if isinstance(named, str) else None,
        hint="copy tokenizer.json from the model this one was made from, or save the tokenizer again",
    )


def _is_half(ckpt: Checkpoint, name: str) -> bool:
    """Whether one of the two files is there that these classes take together."""
    return name in PAIRED and len({"vocab.json", "merges.txt"} & ckpt.files.keys()) == 1
