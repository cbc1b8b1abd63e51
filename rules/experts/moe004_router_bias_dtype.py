"""The router's correction bias is not in F32.

## What it checks
The bias on the router that balances experts (`e_score_correction_bias`, `expert_bias`) is F32.
- It is an error, in any family, if the values of a layer show that a cast has lost something: there are at most a quarter as many
  different values as experts, and they take up (almost) every number that BF16 or F16 has between the lowest and the highest. So
  do values in F32 that were rounded before.
- It is a warning if it is BF16 or F16 in a family that transformers 5.24 keeps in F32 (`_keep_in_fp32_modules_strict`), or in
  Kimi-K2. Of any other family it is not known what was trained, and the rule is skipped. So it is for Kimi-Linear: only
  transformers 5.24 keeps its bias in F32; before, transformers saved it in the model's dtype, as SGLang 0.5.23 still loads it.

## Why it matters
The bias only orders the experts, so its last bits decide. In GLM-5.2 its values lie in [6.817, 7.063]. A cast to BF16 turns 238
distinct values into 8, and routes 98.5 % of the tokens to other experts than in training.

## How to fix
Keep the bias in F32 through training, export and sync (`transformers` does so for these families).

## When it can be wrong
- A bias whose values BF16 holds exactly has lost nothing by the cast, such as one that is still zero because it was never balanced,
  or one that was trained in BF16: `--ignore MOE004`.
- Rounding shows only where the values lie close together beside their size. The rule reads eight layers, and needs 32 experts among
  those that are rounded.
- On the Hub it does not read the values, so it stays a warning.

## Seen in
ISEEKYAN/Megatron-LM#81, NVIDIA-NeMo/Automodel#2553, sgl-project/sglang#37133, sgl-project/sglang#31213
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.tensor import BITS
from ckptcheck.text.formatting import count

BIASES = ("e_score_correction_bias", "expert_bias")
FEW = 4
"""A rounded bias has at most one different value for this many experts."""
LEAST_EXPERTS, LEAST_OF_LAYER = 32, 8
"""Fewest experts for a finding, of all rounded layers and of each: with fewer, few different values show nothing."""
LAYERS_READ = 8
"""Of so many layers the values are read, a few hundred bytes each."""
SHIFTS = {"BF16": (0,), "F16": (0,), "F32": (16, 13)}
"""dtype → the bits that a rounded number of it leaves zero at its end: BF16 in F32, or F16 in F32."""
FAMILIES = frozenset(
    (
        "afmoe",
        "axk1",
        "axk2",
        "beam",
        "deepseek_v3",
        "deepseek_v32",
        "dots1",
        "dots3_note",
        "ernie4_5_moe",
        "ernie4_5_vl_moe",
        "exaone_moe",
        "glm4_moe",
        "glm4_moe_lite",
        "glm4v_moe",
        "glm_moe_dsa",
        "hy_v3",
        "kimi_k2",
        "kimi_k25",
        "kolibri1",
        "mimo_v2_flash",
        "nemotron_h",
        "solar_open",
    )
)
"""Model types that transformers 5.24 keeps in F32, and those of Kimi-K2; without Kimi-Linear (see the page)."""


@rule(
    "MOE004",
    "router-bias-dtype",
    severity="warning",
    when=lambda ckpt: ckpt.config is not None and any(map(_is_bias, ckpt.layout.names_by_template)),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.config is not None
    biases: dict[tuple[str, str], list[str]] = {}
    for template, names in ckpt.layout.names_by_template.items():
        for name in names if _is_bias(template) else ():
            biases.setdefault((name.rpartition(".")[2], ckpt.tensors[name].dtype), []).append(name)
    families = str(ckpt.config.text.get("model_type")), ckpt.config.model_type
    unknown = False
    for (bias, dtype), names in biases.items():
        lost = [found for name in names[:LAYERS_READ] if (found := _count_rounded_values(ckpt, name)) is not None]
        what = f"{bias} is {dtype} in {count(len(names), 'layer')}"
        is_rounded = sum(experts for _, experts in lost) >= LEAST_EXPERTS
        if not is_rounded and (dtype == "F32" or FAMILIES.isdisjoint(families)):
            unknown |= dtype != "F32"
            continue
        yield Problem(
            f"{what}, and rounded: {lost[0][0]} different values for {lost[0][1]} experts; it routes tokens to other experts"
            if is_rounded
            else f"{what}; if it was cast from F32, it routes tokens to other experts",
            file=ckpt.tensor_to_file[names[0]],
            key=names[0],
            hint="take the values from a checkpoint that has them in F32",
            severity="error" if is_rounded else None,
            names=tuple(names),
        )
    if unknown:
        raise Skip(f"whether {families[0]} trains its router's bias in F32 is not known to ckptcheck")


def _is_bias(name: str) -> bool:
    return name.endswith(BIASES)


def _count_rounded_values(ckpt: Checkpoint, name: str) -> tuple[int, int] | None:
    """Return the numbers of different values and of experts if the values are as close as 16 bits allow, else None."""
    tensor, file = ckpt.tensors[name], ckpt.tensor_to_file[name]
    experts = tensor.shape[-1] if tensor.shape else 0
    if not ckpt.can_sample or tensor.dtype not in SHIFTS or experts < LEAST_OF_LAYER:
        return None
    width = BITS[tensor.dtype] // 8
    if tensor.nbytes != width * experts:
        return None
    raw = ckpt.source.read(file, ckpt.shards[file].locate(name), tensor.nbytes)
    patterns = {int.from_bytes(raw[at : at + width], "little") for at in range(0, len(raw), width)}
    if (
        len(patterns) < 2
        or FEW * len(patterns) > experts
        or len({pattern >> (8 * width - 1) for pattern in patterns}) > 1
    ):
        return None
    for shift in SHIFTS[tensor.dtype]:
        steps = ((max(patterns) - min(patterns)) >> shift) + 1
        if all(pattern % (1 << shift) == 0 for pattern in patterns) and 4 * len(patterns) >= 3 * steps:
            return len(patterns), experts
    return None
