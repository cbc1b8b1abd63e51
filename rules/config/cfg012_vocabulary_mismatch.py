"""The embedding or head does not have vocab_size rows.

## What it checks
The token embedding and a stored output head have `vocab_size` rows. The config's `vocab_size` already includes padding rows;
it is not the size of the tokenizer.

## Why it matters
transformers stops with a size mismatch, vLLM and SGLang with an assertion. Megatron pads the vocabulary for its tensor
parallelism, and some exporters do not remove the padding.

## How to fix
Remove the padding, or set `vocab_size` to the number of rows if they are intended.

## When it can be wrong
The model's own code may pad the vocabulary, or add rows for images and sounds, by a setting that ckptcheck does not know: use
`--ignore CFG012`. The architectures of transformers that do so (Moshi, Kyutai's speech to text, CSM, Parakeet, CPM-Ant, Mllama)
are excluded. The rule does not compare with the tokenizer (TOK001), and the right number of rows may still belong to other tokens.
Packed embeddings are not checked.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#5375, NVIDIA-NeMo/Megatron-Bridge#625, OpenHelix-Team/ReconVLA#7
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import ConfiguredCheckpoint


@rule(
    "CFG012",
    "vocabulary-mismatch",
    severity="error",
    on="config",
    when=lambda ckpt: ckpt.components.embedding is not None and not ckpt.is_partial,
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    declared = ckpt.config.number("vocab_size")
    for name in (ckpt.components.embedding, ckpt.components.lm_head):
        if name is None or declared is None or not ckpt.tensors[name].dtype.endswith(("F16", "F32", "F64")):
            continue
        rows = ckpt.tensors[name].shape[0]
        if rows != declared and not _by_design(ckpt, name, rows):
            yield Problem(
                f"it has {rows:,} rows, but {ckpt.config.describe('vocab_size')}; "
                "transformers and vLLM refuse to load it",
                file=ckpt.tensor_to_file[name],
                key=name,
                hint="remove padding rows that an export left, or correct vocab_size if the rows are intended",
            )


def _by_design(ckpt: ConfiguredCheckpoint, name: str, rows: int) -> bool:
    """Architectures whose table is larger by a number that their config gives: extra tokens for audio, padding, a mask.

    A model with several vocabularies, whose class is not known, may have the table of any of them (Parler-TTS reads text and
    writes sound). One that writes images, or several codebooks, has the rows of these. The code of a model that is not
    transformers' may pad the table, to a number of rows or to a multiple of one (the first OLMo, Mamba). ImageGPT never
    predicts the token that begins an image, so that its head has a row less. A draft model may predict the commonest tokens only
    (EAGLE-3).
    """
    declared = ckpt.config.number("vocab_size") or 0
    if ckpt.config.resolved is None and rows in _list_vocabularies(ckpt.config.value):
        return True
    if ckpt.config.resolved is None and rows > declared:
        multiples = [size for key in MULTIPLES if (size := ckpt.config.integer(key))]
        if rows in map(ckpt.config.integer, PADDED) or any(
            rows == -(-declared // multiple) * multiple for multiple in multiples
        ):
            return True
    if name == ckpt.components.lm_head and rows == ckpt.config.integer("draft_vocab_size"):
        return True
    codebooks = ckpt.config.integer("num_codebooks") or 0
    if (
        name == ckpt.components.embedding and rows == codebooks * declared
    ):  # one table for all codebooks (CSM's depth decoder)
        return True
    if name == ckpt.components.lm_head and rows == ckpt.config.integer(
        "vision_vocab_size"
    ):  # GLM-Image writes images alone
        return True
    if ckpt.config.get("model_type") == "imagegpt" and name == ckpt.components.lm_head:
        return rows == declared - 1
    rest = f"{name.removesuffix('embedding')}new_embedding"
    if name.endswith("wte.embedding") and rest in ckpt.tensors:  # transformers joins both parts of the table (Molmo 2)
        return rows + ckpt.tensors[rest].shape[0] >= declared
    return ckpt.config.get("model_type") in _EXTRA and rows >= declared


def _list_vocabularies(value: Mapping[str, Any]) -> set[Any]:
    """Return the sizes of the vocabularies that a config and the configs in it give."""
    parts = [value, *(part for part in value.values() if isinstance(part, dict))]
    return {part["vocab_size"] for part in parts if type(part.get("vocab_size")) is int}


PADDED = ("padded_vocab_size", "embedding_size")
"""Settings that give the number of rows with padding."""
MULTIPLES = ("pad_vocab_size_multiple", "make_vocab_size_divisible_by")
_EXTRA = ("moshi", "cpmant", "csm", "kyutai_speech_to_text", "mllama", "mllama_text_model", "parakeet_tdt")
