"""An output head is stored although the config ties it to the embedding.

## What it checks
With `tie_word_embeddings: true` there is no separate `lm_head.weight`. The headers do not show whether it equals the
embedding. Where a composite config has the flag on both levels, the upper one counts, as for transformers 5 and vLLM; for Llama 4,
BLIP-2 and their like it is that of the text model.

## Why it matters
Engines use the embedding and ignore the stored head, older vLLM stops with a KeyError, and transformers before 5 ignores it too: a
head that training untied is lost. transformers 5 compares the two, and keeps a head that differs, with a warning.

## How to fix
If head and embedding are equal, drop the head. If they differ, set `tie_word_embeddings` to false.

## When it can be wrong
Many exporters store the tied head as well, equal to the embedding; then it only wastes space. The values are not compared.
Only a tensor named `lm_head.weight` counts; the rule does not find a packed head or one with another name.

## Seen in
ml-explore/mlx-lm#1298 (granite-4.1-8b), vllm-project/vllm#6758
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "CFG008",
    "head-while-tied",
    severity="warning",
    when=lambda ckpt: ckpt.components.is_tied is True and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    head = ckpt.components.lm_head
    if head is not None and ckpt.components.embedding is not None and head.endswith("lm_head.weight"):
        yield Problem(
            "the config ties the output head to the embedding, but a head is stored: engines ignore it",
            file=ckpt.tensor_to_file[head],
            key=head,
            hint="drop the head if it equals the embedding, otherwise set tie_word_embeddings to false",
        )
