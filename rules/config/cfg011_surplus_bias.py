"""Attention biases are stored that the model does not have.

## What it checks
In the families of CFG010, no projection has a bias if the config disables biases.

## Why it matters
transformers omits them with a warning, so it computes another function than the trainer did; vLLM stops with a KeyError.

## How to fix
Set the flag (`attention_bias` and its synonyms) if the model was trained with biases; otherwise export without them.

## When it can be wrong
Biases that are all zero can be omitted without any effect. Packers write such biases: the rule recognizes AutoGPTQ's by the
`qweight` beside them, but those of other packers fire. So does a model with its own code under a known `model_type`. vLLM may
stop at them anyway, so export without them before you use `--ignore CFG011`.

## Seen in
No public report: the reverse of paiml/entrenar#258.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.decoder_families import QKVO, expects_biases, family_of
from ckptcheck.text.formatting import format_layers


@rule(
    "CFG011",
    "surplus-bias",
    severity="error",
    when=lambda ckpt: family_of(ckpt.config) is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    family, stack = family_of(ckpt.config), ckpt.components.stack
    if family is None or stack is None:
        return
    expected = family.biased if expects_biases(family, ckpt.config) else ()
    surplus: dict[str, list[int]] = {}
    for layer, names in ckpt.components.layers.items():
        for part in QKVO:
            # AutoGPTQ writes a bias of zeros to every layer it packs; vLLM and transformers know that.
            packed = f"self_attn.{part}.qweight" in names
            if part not in expected and f"self_attn.{part}.bias" in names and not packed:
                surplus.setdefault(part, []).append(layer)
    if surplus:
        layers = sorted({layer for where in surplus.values() for layer in where})
        flag = f"{family.bias_flag} is not set" if family.bias_flag and not expected else "this family has none there"
        yield Problem(
            f"{stack.prefix}: {format_layers(layers)} {'has' if len(layers) == 1 else 'have'} "
            f"a bias for {', '.join(surplus)}, but {flag}; "
            "transformers omits it",
            file=ckpt.file_of(stack.full_name(layers[0])),
            key=stack.full_name(layers[0], f"self_attn.{next(iter(surplus))}.bias"),
            hint=f"set {family.bias_flag} if the model was trained with biases"
            if family.bias_flag
            else "export without it",
        )
