"""The reward or value head is missing.

## What it checks
A model whose architecture is a sequence or token classifier, as reward models and critics are, holds a head: `score`,
`classifier`, `value_head`, `v_head` and the like.

## Why it matters
transformers and vLLM initialize it with random numbers, so every reward or value is noise, and training continues without an
error.

## How to fix
Export the head with the model; it is often in a separate file (`value_head.safetensors`).

## When it can be wrong
A class that code outside the folder registers may give its head another name: the rule is quiet if the config has an
`auto_map`; otherwise use `--ignore HEAD001`. Rerankers whose config names `classifier_from_token` are excluded: vLLM builds
their head from rows of the LM head, but transformers initializes a random one. A critic that is saved under a language-model
architecture needs no head by its config, so this rule does not find its loss; `ckptcheck diff --critic` does (CMP008).

## Seen in
hiyouga/LlamaFactory#4379
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.heads import is_scorer
from ckptcheck.checkpoint.views import ConfiguredCheckpoint

OF_BERT = re.compile(r"(^|\.)embeddings\.word_embeddings\.")
"""Embeddings of BERT and its kin, whose heads are a `classifier`; decoders have a `score`."""


@rule(
    "HEAD001",
    "missing-score-head",
    severity="error",
    on="config",
    when=lambda ckpt: is_scorer(ckpt.config) and not ckpt.is_partial,
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    if ckpt.config.get("classifier_from_token"):
        return  # vLLM takes the head's rows from the LM head (model_executor/models/adapters.py, 0.32)
    if ckpt.tensors and not ckpt.components.score_head_tensors and "auto_map" not in ckpt.config.value:
        lm_head = ", only a language-modelling head" if ckpt.components.lm_head else ""
        name = "classifier" if any(OF_BERT.search(tensor) for tensor in ckpt.tensors) else "score.weight"
        yield Problem(
            f"{ckpt.config.architecture} needs a head ({name}), but there is none{lm_head}; "
            "transformers initializes it with random numbers",
            file=ckpt.config.file,
            key="architectures",
            hint="export the head with the model, or correct architectures",
        )
