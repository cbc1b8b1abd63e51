"""Embedding or head have another number of rows than the vocabulary.

## What it checks
The token embedding and a stored output head have `vocab_size` rows. The config's `vocab_size` already includes
padding rows; it is not the size of the tokenizer.

## Why it matters
transformers stops with a size mismatch, vLLM and SGLang with an assertion. Megatron pads the vocabulary for its
tensor parallelism, and exporters forget to cut the padding off.

## How to fix
Cut the padding off, or write the number of rows as `vocab_size` if the rows are meant.

## When it can be wrong
Code of the model's own may pad the vocabulary itself, or add rows for images and sounds, by a setting that nobody
else knows; those of transformers' own architectures that do (Moshi, CPM-Ant, Mllama) are left out. `--ignore CFG012`
there. It does not compare with the tokenizer (TOK001), and rows that are right in number may belong to other tokens.
Packed embeddings are not counted.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#5375, NVIDIA-NeMo/Megatron-Bridge#625, OpenHelix-Team/ReconVLA#7
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "CFG012",
    "vocabulary-mismatch",
    severity="error",
    when=lambda ckpt: ckpt.config is not None and ckpt.anatomy.embedding is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.config is not None
    declared = ckpt.config.integer("vocab_size")
    for name in (ckpt.anatomy.embedding, ckpt.anatomy.head):
        if name is None or declared is None or not ckpt.tensors[name].dtype.endswith(("F16", "F32", "F64")):
            continue
        rows = ckpt.tensors[name].shape[0]
        if rows != declared and not _by_design(ckpt, rows):
            yield Problem(
                f"it has {rows:,} rows, but {ckpt.config.key('vocab_size')} is {declared:,}; "
                "transformers and vLLM refuse to load it",
                file=ckpt.holders[name],
                key=name,
                hint="cut off padding rows that an export left, or correct vocab_size if the rows are meant",
            )


def _by_design(ckpt: Checkpoint, rows: int) -> bool:
    """Architectures whose table is larger by a number that their config gives: extra tokens for audio, padding, a mask."""
    assert ckpt.config is not None
    declared = ckpt.config.integer("vocab_size") or 0
    return ckpt.config.get("model_type") in _EXTRA and rows >= declared


_EXTRA = ("moshi", "cpmant", "mllama", "mllama_text_model")
