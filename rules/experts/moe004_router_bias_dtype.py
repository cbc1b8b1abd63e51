"""The router's correction bias is not in F32.

## What it checks
The tensor `e_score_correction_bias` is F32 in the families that balance experts with a bias on the router: DeepSeek-V3 and V3.2,
Kimi-K2, GLM-4.5 and later.

## Why it matters
The bias only orders the experts, so its last bits decide. In GLM-5.2 its values lie in [6.817, 7.063]. A cast to BF16 turns 238
distinct values into 8, and routes 98.5 % of the tokens to other experts than in training.

## How to fix
Keep the bias in F32 through training, export and sync (`transformers` does so for these families).

## When it can be wrong
- A bias whose values BF16 holds exactly has lost nothing by the cast, such as one that is still zero because it was never balanced.
  The rule does not read the values; if you know them, `--ignore MOE004`.
- It misses a bias that was cast to BF16 and back: in F32 again, it still has only a few distinct values. `ckptcheck diff` against
  the original finds that.

## Seen in
ISEEKYAN/Megatron-LM#81, sgl-project/sglang#37133, sgl-project/sglang#31213
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import LayeredCheckpoint
from ckptcheck.text.formatting import count

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
    on="layers",
    when=lambda ckpt: (
        ckpt.config is not None
        and (str(ckpt.config.text.get("model_type")) in FAMILIES or ckpt.config.model_type in FAMILIES)
    ),
)
def check(ckpt: LayeredCheckpoint) -> Iterator[Problem]:
    stack = ckpt.components.stack
    cast: dict[str, list[str]] = {}
    for layer, names in stack.layers.items():
        for name in names:
            if name.endswith(BIAS) and (dtype := ckpt.tensors[stack.full_name(layer, name)].dtype) != "F32":
                cast.setdefault(dtype, []).append(stack.full_name(layer, name))
    for dtype, tensors in cast.items():
        yield Problem(
            f"{BIAS} is {dtype} in {count(len(tensors), 'layer')}; cast from F32 it routes tokens to other experts",
            file=ckpt.tensor_to_file[tensors[0]],
            key=tensors[0],
            hint="take the values from a checkpoint that has them in F32",
        )
