"""An output head is stored although the config ties it to the embedding.

## What it checks
With `tie_word_embeddings: true` there is no separate `lm_head.weight`. One that equals the embedding, as in Qwen3-0.6B and
Falcon, is only an info: sixteen pieces of both are compared where the files can be read. Where a composite config has the flag on
both levels, the upper one counts, as for transformers 5 and vLLM; for Llama 4, BLIP-2 and their like it is that of the text model.
Classes that have a head of their own whatever the config says (Pop2Piano) are left out: learned from transformers.

## Why it matters
Engines use the embedding and ignore the stored head, older vLLM stops with a KeyError, and transformers before 5 ignores it too: a
head that training untied is lost. transformers 5 compares the two, and keeps a head that differs, with a warning.

## How to fix
If head and embedding are equal, drop the head. If they differ, set `tie_word_embeddings` to false.

## When it can be wrong
On the Hub nothing is compared, so that any head of the embedding's shape is an info there, also one that differs. Only a tensor
named `lm_head.weight` counts; the rule does not find a packed head or one with another name.

## Seen in
ml-explore/mlx-lm#1298 (granite-4.1-8b), vllm-project/vllm#6758
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.heads import never_ties
from ckptcheck.values.detectors.byte_compare import read_tensor_bytes

SAMPLES, SAMPLE = 16, 4096
"""Number of pieces of a table that are compared, and the bytes of each."""


@rule(
    "CFG008",
    "head-while-tied",
    severity="warning",
    when=lambda ckpt: (
        ckpt.components.is_tied is True
        and not never_ties(ckpt.config.architecture if ckpt.config is not None else None)
        and not ckpt.is_partial
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    head, embedding = ckpt.components.lm_head, ckpt.components.embedding
    if head is None or embedding is None or not head.endswith("lm_head.weight"):
        return
    alike = _are_alike(ckpt, head, embedding)
    if alike:
        yield Problem(
            "the output head is stored although the config ties it to the embedding, and is the same: it only takes space",
            file=ckpt.tensor_to_file[head],
            key=head,
            severity="info",
            hint="drop the head",
        )
    elif alike is None:  # many releases store both, nearly all of them with equal values
        yield Problem(
            "the output head is stored although the config ties it to the embedding, and no values show whether it is the same",
            file=ckpt.tensor_to_file[head],
            key=head,
            severity="info",
            hint="drop the head if it equals the embedding, otherwise set tie_word_embeddings to false",
        )
    else:
        yield Problem(
            "the config ties the output head to the embedding, but another head is stored: engines ignore it",
            file=ckpt.tensor_to_file[head],
            key=head,
            hint="set tie_word_embeddings to false if this head was trained; drop it if it remains from before tying",
        )


def _are_alike(ckpt: Checkpoint, head: str, embedding: str) -> bool | None:
    """Whether samples of head and embedding have the same bytes; None if no values can be read, or if all are zero."""
    own, other = ckpt.tensors[head], ckpt.tensors[embedding]
    if (own.dtype, own.shape) != (other.dtype, other.shape):
        return False
    if not ckpt.can_sample:
        return None
    starts = range(0, own.nbytes, max(own.nbytes // SAMPLES, SAMPLE))
    spans = [(start, min(SAMPLE, own.nbytes - start)) for start in starts]
    read = [[read_tensor_bytes(ckpt, name, *span) for span in spans] for name in (head, embedding)]
    if not any(any(map(any, samples)) for samples in read):
        return None
    return read[0] == read[1]
