"""Trainer and engine part at a module: it is the first that computes something else.

## What it checks
The same prompt went through both sides, and what every module gave out was compared in the order of execution. This module is
the first whose output is further apart than rounding brings it; all before it agree.

## Why it matters
From here on both sides compute with another model. The policy that samples is not the policy that learns, whatever the
logprobs' mean says, and no correction of the objective makes that right.

## How to fix
Look at this one module on both sides: its weights (ckptcheck refit compares them), and what no weight says: the norm's epsilon and
whether its weight counts from 0 or from 1, the rotary base, scaling and interleave, the softmax scale, the mask, the order of gate
and up, the router's normalisation. Where the difference has a simple form, the message names it.

## When it can be wrong
In 16-bit dtypes a difference of 3 % can be nothing but another order of additions; the limit is 16 times the distance between
neighbouring numbers, and `--limit` sets another. In a mixture of experts a token on the edge between two experts may go to another:
see LOC005.

## Seen in
huggingface/transformers#25681 (rotary embeddings), vllm-project/vllm#590 (Llama's norm epsilon), the verl/msProbe guide to
consistency dumps
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.localize.localization import Localization
from ckptcheck.localize.points import LAYER

LOOK = {
    "input_layernorm": "its epsilon, its weight, and whether that counts from 0 or from 1",
    "post_attention_layernorm": "its epsilon, its weight, and whether that counts from 0 or from 1",
    "self_attn.q_norm": "its epsilon and weight, and whether it comes before or after the heads are cut",
    "self_attn.k_norm": "its epsilon and weight, and whether it comes before or after the heads are cut",
    "self_attn.core": "the rotary embedding (base, scaling, interleave), the softmax scale and the mask; q, k and v agree",
    "self_attn.o_proj": "its weight; what goes in agrees",
    "mlp.gate": "the router's weight and the dtype that it computes in",
    "mlp.act": "the activation, and which of gate and up it is applied to",
    "mlp.down_proj": "its weight; what goes in agrees",
    "mlp": "the experts' weights, their order, and how the router's weights are normalised and scaled",
}


@rule(
    "LOC001",
    "diverging-module",
    severity="error",
    on="localization",
    when=lambda seen: bool(seen.points) and not (seen.diverging and seen.diverging.broken),
)
def check(seen: Localization) -> Iterator[Problem]:
    point = seen.diverging
    if point is None:
        return
    at = seen.points.index(point)
    before = max((other.relative for other in seen.points[:at]), default=0.0)
    message = f"the first module whose output differs: by {point.relative:.2g} of its norm"
    agree = f"within {before:.2g}" if before else "bit for bit"
    message += f", where all {at} before it agree {agree}" if at else "; nothing comes before it"
    if point.first == 1 and point.name.endswith("self_attn.core"):
        message += "; the first token agrees, so it is what depends on the position"
    elif point.first:
        message += f"; it begins at token {point.first} of {point.tokens}"
    if seen.relation:
        message += f"; {seen.sides[1]}: {seen.relation}"
    found = LAYER.fullmatch(point.name)
    yield Problem(
        message,
        key=point.name,
        hint="look at "
        + LOOK.get(found[2] if found else "", "its weight, and how it is mapped from one side to the other"),
    )
