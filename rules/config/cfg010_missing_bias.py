"""The attention biases of the model are missing.

## What it checks
In the families whose biases are known (Llama, Qwen, Gemma, GLM, Granite, OLMo, Cohere, gpt-oss, StarCoder2, …), a layer that
has the projection's weight has its bias if the config enables biases, or if the family always has them (Qwen2).

## Why it matters
transformers initializes the missing biases with zeros or random numbers; vLLM and SGLang leave them uninitialized. Qwen2
without its 72 biases answers gibberish, although every existing tensor looks right.

## How to fix
Export again with an exporter that supports the family's biases.

## When it can be wrong
The model's own code, under the `model_type` of a known family, may have biases elsewhere: use `--ignore CFG010`, or give the
model another `model_type`. Only q, k, v and o under their usual names are checked. CFG005 reports missing biases of fused
projections, feed-forward blocks and norms if other layers have them.

## Seen in
paiml/entrenar#258 (Qwen2, 290 tensors became 218)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.decoder_families import expects_biases, family_of
from ckptcheck.text.formatting import format_layers


@rule(
    "CFG010",
    "missing-bias",
    severity="error",
    when=lambda ckpt: family_of(ckpt.config) is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    family, stack = family_of(ckpt.config), ckpt.components.stack
    if family is None or stack is None or not expects_biases(family, ckpt.config):
        return
    lacking: dict[str, list[int]] = {}
    for layer, names in ckpt.components.layers.items():
        for part in family.biased:
            if f"self_attn.{part}.weight" in names and f"self_attn.{part}.bias" not in names:
                lacking.setdefault(part, []).append(layer)
    if lacking:
        layers = sorted({layer for where in lacking.values() for layer in where})
        flag = f"{family.bias_flag} is true" if family.bias_flag else "this family always has them"
        yield Problem(
            f"{stack.prefix}: {format_layers(layers)} {'lacks' if len(layers) == 1 else 'lack'} "
            f"the bias of {', '.join(lacking)}, but {flag}",
            file=ckpt.file_of(stack.full_name(layers[0])),
            key=stack.full_name(layers[0], f"self_attn.{next(iter(lacking))}.bias"),
            hint="export again: loaders fill the gap with zeros, random numbers or uninitialized memory",
        )
