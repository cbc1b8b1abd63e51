"""The reward or value head is missing.

## What it checks
A model whose architecture is a sequence or token classifier (what reward models and critics are saved as) holds a
head: `score`, `classifier`, `value_head`, `v_head` and the like.

## Why it matters
transformers and vLLM start it from random numbers, so every reward or value is noise, and training goes on.

## How to fix
Export the head with the model; it often lies in a file of its own (`value_head.safetensors`).

## When it can be wrong
A class that is registered by code outside of the folder may call its head by a name that nobody else uses; with
`auto_map` in the config the rule is quiet, else `--ignore HEAD001`. Rerankers whose config names
`classifier_from_token` are left out: vLLM makes their head of rows of the LM head, but transformers starts a random
one. A critic that is saved under the name of a language model needs no head by its config, so its loss is not seen
here; `ckptcheck diff --critic` asks for one (CMP008).

## Seen in
hiyouga/LlamaFactory#4379
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.heads import is_scorer

OF_BERT = re.compile(r"(^|\.)embeddings\.word_embeddings\.")
"""Embeddings of BERT and its kin, whose heads are a `classifier`; decoders have a `score`."""


@rule(
    "HEAD001", "missing-score-head", severity="error", when=lambda ckpt: is_scorer(ckpt.config) and not ckpt.is_partial
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    assert ckpt.config is not None
    if ckpt.config.get("classifier_from_token"):
        return  # vLLM takes the head's rows from the LM head (model_executor/models/adapters.py, 0.32)
    if ckpt.tensors and not ckpt.anatomy.scores and "auto_map" not in ckpt.config.value:
        lm_head = ", only a language-modelling head" if ckpt.anatomy.head else ""
        name = "classifier" if any(OF_BERT.search(tensor) for tensor in ckpt.tensors) else "score.weight"
        yield Problem(
            f"{ckpt.config.architecture} needs a head ({name}), but there is none{lm_head}; "
            "transformers starts it from random numbers",
            file=ckpt.config.file,
            key="architectures",
            hint="export the head with the model, or correct architectures",
        )
