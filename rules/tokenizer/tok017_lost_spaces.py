"""The tokenizer has lost the step that turns spaces into its sign for them, or the reverse step.

## What it checks
Where a twentieth of the tokens of tokenizer.json, and at least 20, begin with Ġ (byte-level) or with ▁ (SentencePiece): a step of
`normalizer` or `pre_tokenizer` turns spaces into that sign (`ByteLevel`, `Metaspace`, or a replacement that names it), and a step
of `decoder` turns it back, where the model writes text.

## Why it matters
- Without the first step, no text has these tokens: `Hello there world` becomes five pieces without a space in place of three, which
  the model has never seen in training.
- Without the second, answers come out as `Hello Ġthere Ġworld`, and a reward that compares texts is wrong.

The library `tokenizers` computes so, and with it transformers, vLLM and SGLang. For a class that builds these steps itself
(`GPT2Tokenizer`, `Qwen2Tokenizer` of transformers 5), it is a warning: transformers 4 and servers in Rust still take them from the
file.

## How to fix
Copy tokenizer.json from the model this one was made from, or save the tokenizer again.

## When it can be wrong
A step of a newer `tokenizers` that does the same under another name. `--ignore TOK017`, or a reason under `[ignore]`, silences it.

## Seen in
No public report: tried with transformers 5.24 and tokenizers 0.23.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import TokenizedCheckpoint

STEPS = {"Ġ": "ByteLevel", "▁": "Metaspace"}
"""What tokens write for a space → the step of `tokenizers` that does so."""
MIN_TOKENS, MIN_SHARE = 20, 0.05
GENERIC = ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")
"""The classes of transformers that take every step from tokenizer.json."""
WRITERS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Suffixes of the classes that generate text."""


@rule("TOK017", "lost-spaces", severity="error", on="tokenizer")
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    vocabulary = ckpt.tokenizer.vocabulary
    if vocabulary is None or not vocabulary.readable or vocabulary.encoding_words is None:
        return
    settings, architecture = (
        ckpt.tokenizer.tokenizer_config,
        ckpt.config.architecture if ckpt.config is not None else None,
    )
    is_writer = architecture is None or architecture.endswith(WRITERS)
    is_generic = settings is not None and settings.value.get("tokenizer_class") in GENERIC
    hint = "copy tokenizer.json from the model this one was made from, or save the tokenizer again"
    for sign, step in STEPS.items():
        marked = sum(token.startswith(sign) and token != sign for token in vocabulary.model)
        if marked < max(MIN_TOKENS, MIN_SHARE * len(vocabulary.model)):
            continue
        for key, words, harm in (
            (
                "pre_tokenizer",
                vocabulary.encoding_words,
                "normalizer or pre_tokenizer writes: no text becomes these tokens",
            ),
            ("decoder", vocabulary.decoding_words or (), f"decoder reads: answers have {sign} in place of spaces"),
        ):
            is_read = key != "decoder" or is_writer
            if is_read and step not in words and not any(sign in word for word in words):
                yield Problem(
                    f"{marked:,} tokens have {sign} for a space, which no step of {harm}",
                    file="tokenizer.json",
                    key=key,
                    severity="error" if is_generic else "warning",
                    hint=hint,
                )
