"""The router's correction bias is not in F32.

## What it checks
In the families that balance experts with a bias on the router (DeepSeek-V3 and V3.2, Kimi-K2, GLM-4.5 and later), the
tensor `e_score_correction_bias` is F32.

## Why it matters
The bias only orders the experts, so its last bits decide. In GLM-5.2 its values lie in [6.817, 7.063]: cast to BF16,
238 distinct values become 8, and 98.5 % of the tokens are routed to other experts than in training.

## How to fix
Keep the bias in F32 through training, export and sync (`transformers` does so for these families).

## When it can be wrong
A bias whose values BF16 holds exactly, such as one that is zero still because it was never balanced, has lost nothing
by the cast. The values are not looked at; where you know them, `--ignore MOE004`. It is quiet about a bias that was
cast to BF16 and back: in F32 again, it is still a few distinct values. `ckptcheck diff` against the original sees
that.

## Seen in
ISEEKYAN/Megatron-LM#81, sgl-project/sglang#37133, sgl-project/sglang#31213
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count

BIAS = "e_score_correction_bias"
FAMILIES = frozenset(
    (
        "deepseek_v3",
        "deepseek_v32",
        "kimi_k2",
        "kimi_k25",
        "kimi_linear",
        "glm4_moe",
        "glm4_moe_lite",
        "glm4v_moe",
        "glm_moe_dsa",
    )
)


@rule(
    "MOE004",
    "router-bias-dtype",
    severity="error",
    when=lambda ckpt: (
        ckpt.config is not None
        and (str(ckpt.config.text.get("model_type")) in FAMILIES or ckpt.config.model_type in FAMILIES)
        and bool(ckpt.anatomy.layers)
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    stack = ckpt.anatomy.stack
    assert stack is not None
    cast: dict[str, list[str]] = {}
    for layer, names in stack.layers.items():
        for name in names:
            if name.endswith(BIAS) and (dtype := ckpt.tensors[stack.name(layer, name)].dtype) != "F32":
                cast.setdefault(dtype, []).append(stack.name(layer, name))
    for dtype, tensors in cast.items():
        yield Problem(
            f"{BIAS} is {dtype} in {count(len(tensors), 'layer')}; cast from F32 it routes tokens to other experts",
            file=ckpt.holders[tensors[0]],
            key=tensors[0],
            hint="take the values from a checkpoint that has them in F32",
        )
