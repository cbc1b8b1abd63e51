"""Tokens that nothing uses have embedding rows that were never trained.

## What it checks
- Rows that are untrained as EMB001 defines it, of tokens that neither the chat template nor a config uses. Most are reserved
  tokens. Ordinary tokens (of the tokenizer's own vocabulary, not added, reserved or special) are reported separately as words.
- Without a tokenizer beside the weights: any untrained row, except that of the padding token and those that a config uses. Without
  a config too, the only one of an embedding, if it is zero, may be that of padding (EMB003).
- If the tokenizer's ids cannot be read (SentencePiece alone): the same, but up to an eighth of all rows at the end may be padding
  (EMB003).
- In a Megatron run the last rows are left out, as many as its arguments may have padded the vocabulary with.

## Why it matters
Nothing happens until somebody uses the token: a new chat template, a tool format, a tokenizer with added tokens. Then gradients
are Inf from the first step. Words are different, since any text may hold them. Their rows are empty if a write or a rank was lost
(VAL005 sees large pieces), or if the training data never held them and weight decay shrank them.

## How to fix
Nothing, as long as the tokens stay unused. Initialise the rows before you give the tokens a meaning. If they are words, compare
the file's hash with the original's; if it agrees, keep the words out of your prompts or train them.

## When it can be wrong
- Many sound models keep reserved tokens at zero: Llama 3 does, base and instruct alike. Large vocabularies have words that no
  training text held, such as bytes that occur in no text. The warning is for whoever will use one; it does not question the model.
- Equal rows are not reported: SmolLM2-135M has a run of five, Gemma 3 270M runs of three.
- A Megatron run may end in untrained rows of tokens if its arguments do not say to which multiple it pads. They count as padding.
- A multimodal checkpoint has one such row if its config does not name its placeholder token.

## Seen in
unslothai/unsloth#658, OpenRLHF/OpenRLHF#648, NVIDIA-NeMo/Megatron-Bridge#4967
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count
from ckptcheck.values.detectors.token_usage import find_ordinary_rows, format_tokens
from ckptcheck.values.detectors.untrained_rows import find_untrained_rows


@rule("EMB002", "untrained-row", severity="warning", on="values", when=lambda ckpt: bool(ckpt.vocabulary_tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for matrix in find_untrained_rows(ckpt):
        unused = [row for row in matrix.rows if row not in matrix.used_rows and row not in matrix.padding_rows]
        ordinary = set(find_ordinary_rows(ckpt, unused))
        for rows, one, several, hint in (
            (
                [row for row in unused if row not in ordinary],
                "row is untrained",
                "rows are untrained",
                "initialise these rows before you give their tokens a meaning",
            ),
            (
                sorted(ordinary),
                "word has an untrained row",
                "words have untrained rows",
                "compare the file's hash with the original's: any text may hold these tokens",
            ),
        ):
            if rows:
                yield Problem(
                    f"{count(len(rows), one, several)} (the first is "
                    f"{matrix.rows[min(rows)]}): {format_tokens(ckpt, rows)} ({matrix.summary})",
                    file=matrix.file(rows),
                    key=matrix.name,
                    hint=hint,
                )
