"""An output head is stored although the config ties it to the embedding.

## What it checks
With `tie_word_embeddings: true` there is no `lm_head.weight` of its own. From the headers nobody can tell whether it
equals the embedding.

## Why it matters
transformers ignores the stored head and uses the embedding; older vLLM stops with a KeyError. If training untied the
two, the trained head is thrown away on load.

## How to fix
If head and embedding are equal, drop the head. If they differ, set `tie_word_embeddings` to false.

## When it can be wrong
Many exporters store the tied head as well, equal to the embedding; nobody is hurt then but by the room it takes. The
values are not compared. Only a tensor called `lm_head.weight` counts; a head of another name, or one that is packed,
is stored unseen.

## Seen in
ml-explore/mlx-lm#1298 (granite-4.1-8b), vllm-project/vllm#6758
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "CFG008", "head-while-tied", severity="warning", when=lambda ckpt: ckpt.anatomy.tied is True and not ckpt.is_partial
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    head = ckpt.anatomy.head
    if head is not None and ckpt.anatomy.embedding is not None and head.endswith("lm_head.weight"):
        yield Problem(
            "the config ties the output head to the embedding, yet a head is stored; transformers ignores it",
            file=ckpt.holders[head],
            key=head,
            hint="drop the head if it equals the embedding, else set tie_word_embeddings to false",
        )
