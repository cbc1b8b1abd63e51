"""Trainer and engine differ from this module on.

## What it checks
The same prompt goes through both sides, and ckptcheck compares the output of every module in the order of execution. This module is
the first whose output differs by more than rounding; all modules before it agree. Of dumps, ckptcheck compares each data-parallel
and context-parallel rank, and names those that differ. Where nothing differs and something was not compared (a rank, a micro batch,
a module that one side fuses), the rule is skipped and says so. The first point at which one side, or both, have a number that is
not finite is a finding of its own.

## Why it matters
From here on the two sides compute different models. The policy that samples is not the policy that learns, whatever the mean of
the logprobs says, and no correction of the objective mends that. After NaN or Inf every module has them too, and the engine samples
from that all the same: it answers with garbage, or with one token for ever.

## How to fix
Look at this one module on both sides:

- its weights (`ckptcheck refit` compares them);
- what is not in the weights: the norm's epsilon and whether its weight counts from 0 or from 1, the rotary base, scaling and
  interleave, the softmax scale, the mask, the order of gate and up, the router's normalisation.

Where the difference has a simple form, the message names it. NaN or Inf on one side only: look at what that side does to the
weights (a missing scale, a packed copy, float16 where the model needs bfloat16). On both sides: `ckptcheck scan` looks at the
weights.

## When it can be wrong
- In 16-bit dtypes another order of additions alone can make a difference of 3 %. The limit is 16 times the distance between
  neighbouring numbers; `--limit` sets another.
- In a mixture of experts a token on the edge between two experts may go to another one: see LOC005.

## Seen in
huggingface/transformers#25681 (rotary embeddings), vllm-project/vllm#590 (Llama's norm epsilon), the verl/msProbe guide to
consistency dumps; vLLM's W8A8 layers after a reload of weights, float16 attention logits beyond 65504
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.compare.activations.points import LAYER
from ckptcheck.live.localize.localization import Localization
from ckptcheck.text.formatting import join_truncated

LOOK = {
    "input_layernorm": "its epsilon, its weight, and whether that counts from 0 or from 1",
    "post_attention_layernorm": "its epsilon, its weight, and whether that counts from 0 or from 1",
    "self_attn.q_norm": "its epsilon and weight, and whether it comes before or after the heads are cut",
    "self_attn.k_norm": "its epsilon and weight, and whether it comes before or after the heads are cut",
    "self_attn.core": "the rotary embedding (base, scaling, interleave), the softmax scale and the mask",
    "self_attn.o_proj": "its weight",
    "mlp.gate": "the router's weight and the dtype that it computes in",
    "mlp.act": "the activation, and which of gate and up it is applied to",
    "mlp.down_proj": "its weight",
    "mlp": "the experts' weights, their order, and how the router's weights are normalised and scaled",
}

NOT_FINITE = (
    "look at this module on this side: at its dtype (float16 ends at 65504) and, where its weight is packed or scaled, at the"
    " scale; ckptcheck refit tells whether its weight is the other side's"
)

INPUTS = {
    **{f"self_attn.{letter}_proj": ("input_layernorm",) for letter in "qkv"},
    **{f"self_attn.{letter}_norm": (f"self_attn.{letter}_proj",) for letter in "qk"},
    "self_attn.core": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.o_proj": ("self_attn.core",),
    **{f"mlp.{name}": ("post_attention_layernorm",) for name in ("gate", "gate_proj", "up_proj")},
    "mlp.act": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj": ("mlp.act",),
}
"""Point → the points that go into it. Transformer Engine computes the two norms inside the projection, so its dump lacks them."""


@rule(
    "LOC001",
    "diverging-module",
    severity="error",
    on="localization",
    when=lambda evidence: any(part.points for part in evidence.replicas),
)
def check(evidence: Localization) -> Iterator[Problem]:
    differing: dict[str, list[Localization]] = {}
    for part in evidence.replicas:
        if part.first_diverging is not None and not part.first_diverging.non_finite_sides:
            differing.setdefault(part.first_diverging.name, []).append(part)
    for name, parts in differing.items():
        match = LAYER.fullmatch(name)
        yield Problem(
            _describe(parts[0]) + _name_ranks(parts, evidence),
            key=name,
            hint="look at "
            + LOOK.get(match[2] if match else "", "its weight, and how it is mapped from one side to the other")
            + (_judge_inputs(parts[0], match[1], match[2]) if match else ""),
        )
    broken = list(_find_broken(evidence))
    yield from broken
    if not differing and not broken and (missing := evidence.not_compared):
        raise Skip(f"what was compared agrees, but not everything was compared: {join_truncated(missing)}")


def _judge_inputs(part: Localization, layer: str, point: str) -> str:
    """Say whether what goes into a point agrees or was not compared; "" where its inputs have no points."""
    if not (inputs := INPUTS.get(point)):
        return ""
    compared = {other.name for other in part.points}
    missing: list[str] = []
    open_points = list(inputs)
    for name in open_points:  # what goes into a point that was not compared is a suspect as well
        if f"model.layers.{layer}.{name}" not in compared and name not in missing:
            missing.append(name)
            open_points += INPUTS.get(name, ())
    if missing:
        return f"; and at {join_truncated(missing, 5)}, which {'were' if missing[1:] else 'was'} not compared"
    # some families have one more norm between this one and the feed-forward layer
    return "; what goes in agrees" if inputs != ("post_attention_layernorm",) else ""


def _describe(part: Localization) -> str:
    """Say by how much and how the first diverging point of one pair of ranks differs."""
    point = part.first_diverging
    assert point is not None
    index = part.points.index(point)
    before = max((other.relative for other in part.points[:index]), default=0.0)
    message = f"the first module whose output differs, by {point.relative:.2g} times its norm"
    agree = f"within {before:.2g}" if before else "bit for bit"
    message += f"; all {index} before it agree {agree}" if index else "; nothing comes before it"
    if point.first_token == 1 and point.name.endswith("self_attn.core"):
        message += "; the first token agrees, so it is what depends on the position"
    elif point.first_token:
        message += f"; it begins at token {point.first_token} of {point.tokens}"
    return message + (f"; {part.sides[1]}: {part.relation}" if part.relation else "")


def _name_ranks(parts: list[Localization], evidence: Localization) -> str:
    """Say on which ranks it is so, where there are several pairs of ranks."""
    if not evidence.further:
        return ""
    clean = [part.ranks for part in evidence.replicas if part.first_diverging is None]
    if not clean:
        return f"; on {join_truncated([part.ranks for part in parts])}"
    return f"; on {join_truncated([part.ranks for part in parts])} alone, while {join_truncated(clean)} agree"


def _find_broken(evidence: Localization) -> Iterator[Problem]:
    for part in evidence.replicas:
        point = next((point for point in part.points if point.non_finite_sides), None)
        if point is not None:
            sides = " and ".join(point.non_finite_sides)
            yield Problem(
                f"the output of this module contains NaN or Inf on {sides}, from token {point.first_token} of {point.tokens}"
                f" on; no module before it does{f'; on {part.ranks}' if part.ranks else ''}",
                key=point.name,
                hint=NOT_FINITE
                if len(point.non_finite_sides) == 1
                else "ckptcheck scan tells whether the weights have them;"
                " if not, a number of this module is too large for its dtype on both sides: float16 ends at 65504",
            )
