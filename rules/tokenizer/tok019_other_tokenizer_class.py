"""tokenizer_config.json names a class that builds another kind of model than tokenizer.json has.

## What it checks
Where `tokenizer_class` in tokenizer_config.json, or else in config.json, is a class of transformers that builds its model itself,
it builds the kind that tokenizer.json has: BPE, Unigram or WordPiece. Classes that read tokenizer.json as it is
(`PreTrainedTokenizerFast`, `TokenizersBackend`), the repository's own code (`auto_map`), model types for which `AutoTokenizer` does
not take the class that the file names, and whole words (WordLevel) are left out.

## Why it matters
transformers 5 takes the tokens from tokenizer.json and gives them to the class. A `BertTokenizer` makes a WordPiece of the tokens
of a BPE, and reads most words as unknown; a `T5Tokenizer` stops with a TypeError. vLLM and SGLang load tokenizers with
transformers.
transformers 4 read tokenizer.json as it was, so that the mistake could stay unseen.

## How to fix
Name the class that the tokenizer was saved with, or `PreTrainedTokenizerFast`, which reads tokenizer.json as it is.

## When it can be wrong
- With transformers 4 it does no harm.
- A plugin may register another class under the name.
- `--ignore TOK019`, or a reason under `[ignore]`, silences it.

## Seen in
Tried with the 52 classes of transformers 5.24 that build a model, on small tokenizers of each kind: none reads another kind
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import TokenizedCheckpoint
from ckptcheck.consumers.tokenizer_models import KINDS, find_built_model


@rule("TOK019", "other-tokenizer-class", severity="warning", on="tokenizer")
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    vocabulary, settings = ckpt.tokenizer.vocabulary, ckpt.tokenizer.tokenizer_config
    if vocabulary is None or vocabulary.kind not in KINDS or ckpt.tokenizer.has_own_code:
        return
    named = [
        (part.file, name)
        for part in (settings, ckpt.config)
        if part is not None and isinstance(name := part.value.get("tokenizer_class"), str)
    ]
    if not named:
        return
    file, name = named[0]
    built = find_built_model(name, ckpt.config.model_type if ckpt.config is not None else None)
    if built is not None and built != vocabulary.kind:
        harm = "refuses it" if built == "Unigram" else "reads other tokens"
        yield Problem(
            f"{name} builds a {built} model, and tokenizer.json has a {vocabulary.kind} model: AutoTokenizer of transformers 5 "
            f"{harm}",
            file=file,
            key="tokenizer_class",
            hint="name the class it was saved with, or PreTrainedTokenizerFast, which reads tokenizer.json as it is",
        )
