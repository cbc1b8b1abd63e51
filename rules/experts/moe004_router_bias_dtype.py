"""The router's correction bias is not in F32.

## What it checks
The tensor `e_score_correction_bias` is F32 in the families that balance experts with a bias on the router: DeepSeek-V3 and V3.2,
Kimi-K2, GLM-4.5 and later. In BF16 or F16 it is a warning. It is an error if the values of a layer show that the cast has lost
something: there are at most a quarter as many different values as experts, and they take up (almost) every number that the dtype
has between the lowest and the highest.

## Why it matters
The bias only orders the experts, so its last bits decide. In GLM-5.2 its values lie in [6.817, 7.063]. A cast to BF16 turns 238
distinct values into 8, and routes 98.5 % of the tokens to other experts than in training.

## How to fix
Keep the bias in F32 through training, export and sync (`transformers` does so for these families).

## When it can be wrong
- A bias whose values BF16 holds exactly has lost nothing by the cast, such as one that is still zero because it was never balanced,
  or one that was trained in BF16: `--ignore MOE004`.
- It misses a bias that was cast to BF16 and back: in F32 again, it still has only a few distinct values. `ckptcheck diff` against
  the original finds that.
- On the Hub it does not read the values, so it stays a warning.

## Seen in
ISEEKYAN/Megatron-LM#81, sgl-project/sglang#37133, sgl-project/sglang#31213
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import LayeredCheckpoint
from ckptcheck.text.formatting import count

BIAS = "e_score_correction_bias"
FEW = 4
"""A rounded bias has at most one different value for this many experts."""
LEAST_EXPERTS = 32
"""Fewest experts for a finding: with fewer, few different values show nothing."""
LAYERS_READ = 8
"""Of so many layers the values are read, a few hundred bytes each."""
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
    severity="warning",
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
        lost = [found for name in tensors[:LAYERS_READ] if (found := _count_rounded_values(ckpt, name)) is not None]
        what = f"{BIAS} is {dtype} in {count(len(tensors), 'layer')}"
        yield Problem(
            f"{what}, and rounded: {lost[0][0]} different values for {lost[0][1]} experts; it routes tokens to other experts"
            if lost
            else f"{what}; if it was cast from F32, it routes tokens to other experts",
            file=ckpt.tensor_to_file[tensors[0]],
            key=tensors[0],
            hint="take the values from a checkpoint that has them in F32",
            severity="error" if lost else None,
        )


def _count_rounded_values(ckpt: LayeredCheckpoint, name: str) -> tuple[int, int] | None:
    """Return the numbers of different values and of experts if the values are as close as 16 bits allow, else None."""
    tensor, file = ckpt.tensors[name], ckpt.tensor_to_file[name]
    if not ckpt.can_sample or tensor.nbytes != 2 * tensor.shape[-1] or tensor.shape[-1] < LEAST_EXPERTS:
        return None
    raw = ckpt.source.read(file, ckpt.shards[file].locate(name), tensor.nbytes)
    patterns = {int.from_bytes(raw[at : at + 2], "little") for at in range(0, len(raw), 2)}
    if len(patterns) < 2 or FEW * len(patterns) > tensor.shape[-1] or len({pattern >> 15 for pattern in patterns}) > 1:
        return None
    is_dense = 4 * len(patterns) >= 3 * (max(patterns) - min(patterns) + 1)
    return (len(patterns), tensor.shape[-1]) if is_dense else None
