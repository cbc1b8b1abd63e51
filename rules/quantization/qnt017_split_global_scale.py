"""Weights that engines fuse have different global scales.

## What it checks
NVFP4 has a scale above the scales of its groups: `weight_global_scale` in compressed-tensors, `weight_scale_2` in ModelOpt. It
is the same number in q, k and v, in gate and up (w1 and w3 of an expert), and in the two halves of MLA's first projection.

## Why it matters
Engines build each of these groups as one module with one global scale. vLLM takes the largest, says so in a line of its log,
and the other parts are off by the ratio of the two.

## How to fix
Quantize again with a tool that computes one scale for all parts, as llm-compressor does in all its versions with NVFP4.

## When it can be wrong
Without fusing, as in transformers, each part may have its own scale.

## Seen in
vllm/model_executor/layers/quantization compressed_tensors_w4a4_nvfp4.py and modelopt.py (0.32: a warning, and the maximum)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.quantization.scales import iter_scales
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.text.formatting import natural_sort_key

ROLES = ("weight_global_scale", "weight_scale_2")
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"), ("q_a_proj", "kv_a_proj_with_mqa"))


@rule("QNT017", "split-global-scale", severity="warning", on="quantization")
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    scales_by_module: dict[tuple[str, str], dict[str, float]] = {}
    if not any(role in way.parts for way in ckpt.quantization.storages for role in ROLES):
        return
    for name, _, part in iter_scales(ckpt):
        if part.role in ROLES:
            module, _, last = name.removesuffix(f".{part.role}").rpartition(".")
            whole = next((parts[0] for parts in FUSED if last in parts), None)
            stats = ckpt.values.tensors.get(name)
            if whole is not None and stats is not None:
                scales_by_module.setdefault((module, whole), {})[name] = stats.absmax
    split = {key: scales for key, scales in scales_by_module.items() if len(set(scales.values())) > 1}
    if split:
        first = split[min(split, key=lambda key: natural_sort_key(key[0]))]
        names = sorted(first)
        rest = f", and so in {len(split) - 1:,} more" if len(split) > 1 else ""
        values = " and ".join(f"{first[name]:.3g}" for name in names)
        yield Problem(
            f"{', '.join(name.split('.')[-2] for name in names)} have global scales of {values}{rest}: "
            "vLLM uses the largest for all",
            file=ckpt.tensor_to_file[names[0]],
            key=names[0],
            hint="quantize again with one global scale for what engines fuse",
        )
    ckpt.require_values()
