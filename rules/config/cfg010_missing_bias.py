"""The attention biases that the model has to have are not there.

## What it checks
In the families where it is known which projections have a bias (Llama, Qwen, Gemma, GLM, Granite, OLMo, Cohere,
gpt-oss, StarCoder2, …), a layer that has the projection's weight has its bias when the config turns biases on, or
when the family always has them (Qwen2).

## Why it matters
transformers starts the missing biases at zero or from random numbers, vLLM and SGLang leave them at whatever the
memory held. Qwen2 without its 72 biases answers gibberish, and every tensor that is there looks right.

## How to fix
Export again with an exporter that knows the family's biases.

## When it can be wrong
Code of the model's own, under the `model_type` of a known family, may have biases in other places than the family.
Then `--ignore CFG010`, or give it a `model_type` of its own. Only q, k, v and o under their usual names are looked
at: biases of fused projections, of feed-forward blocks and of norms are CFG005's, which sees them where other layers
have theirs.

## Seen in
paiml/entrenar#258 (Qwen2, 290 tensors became 218)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.families import biases_expected, family_of
from ckptcheck.phrase import ranges


@rule(
    "CFG010",
    "missing-bias",
    severity="error",
    when=lambda ckpt: family_of(ckpt.config) is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    family, stack = family_of(ckpt.config), ckpt.anatomy.stack
    if family is None or stack is None or not biases_expected(family, ckpt.config):
        return
    lacking: dict[str, list[int]] = {}
    for layer, names in ckpt.anatomy.layers.items():
        for part in family.biased:
            if f"self_attn.{part}.weight" in names and f"self_attn.{part}.bias" not in names:
                lacking.setdefault(part, []).append(layer)
    if lacking:
        layers = sorted({layer for where in lacking.values() for layer in where})
        flag = f"{family.bias_flag} is true" if family.bias_flag else "this family always has them"
        yield Problem(
            f"{stack.prefix}: layers {ranges(layers)} lack the bias of {', '.join(lacking)}, and {flag}",
            file=ckpt.holder(stack.name(layers[0])),
            key=stack.name(layers[0], f"self_attn.{next(iter(lacking))}.bias"),
            hint="export again: loaders fill the gap with zeros or with whatever the memory held",
        )
