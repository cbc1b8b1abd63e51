"""The reward or value head is missing.

## What it checks
A model whose architecture is a sequence or token classifier, as reward models and critics are, holds a head:
- in a class that transformers has too, a tensor with the name of a head (`score`, `classifier`, `value_head`, `v_head` and the
  like), or a matrix from the hidden state to fewer numbers than the vocabulary has;
- in any other class, a tensor outside the layers that is neither embedding nor norm nor language-modelling head.

## Why it matters
transformers and vLLM initialize it with random numbers, so every reward or value is noise, and training continues without an
error.

## How to fix
Export the head with the model; it is often in a separate file (`value_head.safetensors`).

## When it can be wrong
A class that code outside the folder registers may keep its head inside a numbered layer: the rule is quiet if the config has an
`auto_map`; otherwise use `--ignore HEAD001`. Rerankers whose config names `classifier_from_token` are excluded: vLLM builds
their head from rows of the LM head, but transformers initializes a random one. A critic that is saved under a language-model
architecture needs no head by its config, so this rule does not find its loss; `ckptcheck diff --critic` does (CMP008).

## Seen in
hiyouga/LlamaFactory#4379
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.heads import find_likely_heads, is_scorer, score_head_modules
from ckptcheck.checkpoint.views import ConfiguredCheckpoint


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
    components = ckpt.components
    if not ckpt.tensors or components.score_head_tensors or "auto_map" in ckpt.config.value:
        return
    own = score_head_modules(ckpt.config.architecture)
    if any(name.startswith(tuple(f"{head}." for head in own)) for name in ckpt.tensors) or find_likely_heads(
        components
    ):
        return
    lm_head = ", only a language-modelling head" if components.lm_head else ""
    needed = f"needs a head ({own[0]})" if own else "needs a head"
    yield Problem(
        f"{ckpt.config.architecture} {needed}, but there is none{lm_head}; "
        f"{'transformers' if own else 'what loads it'} initializes it with random numbers",
        file=ckpt.config.file,
        key="architectures",
        hint="export the head with the model, or correct architectures",
    )
