"""Weights that engines fuse have different global scales.

## What it checks
NVFP4 has a scale above the scales of its groups: `weight_global_scale` in compressed-tensors, `weight_scale_2` in ModelOpt. It
is the same number in q, k and v, in gate and up (w1 and w3 of an expert), and in the two halves of MLA's first projection.

## Why it matters
Engines build each of these groups as one module with one global scale. vLLM and SGLang take the largest, and of experts gate's
(w1); vLLM says so in a line of its log. The other parts are off by the ratio of the two. compressed-tensors stores divisors: there
the largest makes the other parts smaller.

It is an error from a ratio of 1.25 on, where it is as large as the error of NVFP4 itself. In SmolLM2-135M NVFP4 moves the
predictions by a KL of 0.27; a factor of 1.05 on all `up_proj` by 0.01, 1.25 by 0.24, 1.5 by 0.88, 2 by 2.5; on all `k_proj` 0.004,
0.09, 0.38 and 0.75.

## How to fix
Quantize again with a tool that computes one scale for all parts, as llm-compressor does in all its versions with NVFP4.

## When it can be wrong
Without fusing, as in transformers, each part may have its own scale. Some of SGLang's kernels for experts keep both.

## Seen in
vllm/model_executor/layers/quantization compressed_tensors_w4a4_nvfp4.py, modelopt.py and their classes for experts (0.32: a
warning, and the maximum or the first); sglang/srt/layers/quantization modelopt_quant.py (0.5.23: the same)
"""

from collections.abc import Iterator, Mapping

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.quantization.scales import iter_scales
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.compare.quantized_siblings import find_absurd_scales
from ckptcheck.text.formatting import natural_sort_key

ROLES = ("weight_global_scale", "weight_scale_2")
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"), ("q_a_proj", "kv_a_proj_with_mqa"))
DIVISORS = "weight_global_scale"
"""The role of the scale that compressed-tensors divides by."""
MOST_RATIO = 1.25
"""The factor from which a part is wrong by as much as NVFP4 itself."""


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
    absurd = find_absurd_scales(
        ckpt
    )  # QNT030's: a damaged scale, of which another one beside it is no fault of a quantizer
    split = {
        key: scales
        for key, scales in scales_by_module.items()
        if len(set(scales.values())) > 1 and absurd.keys().isdisjoint(scales)
    }
    if split:
        first = split[min(split, key=lambda key: natural_sort_key(key[0]))]
        names = sorted(first)
        rest = f", and so in {len(split) - 1:,} more" if len(split) > 1 else ""
        values = " and ".join(f"{first[name]:.3g}" for name in names)
        factors = [factor for scales in split.values() for factor in _list_factors(scales)]
        worst = max(factors, key=lambda factor: max(factor, 1 / factor), default=1.0)
        yield Problem(
            f"{', '.join(name.split('.')[-2] for name in names)} have global scales of {values}{rest}: vLLM uses "
            f"{'that of the first' if _is_expert(names[0]) else 'the largest'} for all, and multiplies a part by {worst:.3g}",
            file=ckpt.tensor_to_file[names[0]],
            key=names[0],
            hint="quantize again with one global scale for what engines fuse",
            severity="error" if max(worst, 1 / worst) >= MOST_RATIO else None,
            names=tuple(sorted({name for scales in split.values() for name in scales}, key=natural_sort_key)),
        )
    ckpt.require_values()


def _is_expert(name: str) -> bool:
    return ".experts." in name


def _list_factors(scales: Mapping[str, float]) -> list[float]:
    """Return by what vLLM multiplies the parts of a fused module beside what they mean; scales: name → global scale."""
    names = sorted(scales)
    used = scales[names[0]] if _is_expert(names[0]) else max(scales.values())
    factors = [used / own for own in scales.values() if own > 0 < used]  # QNT010 reports zeros
    return [1 / factor for factor in factors] if names[0].endswith(DIVISORS) else factors
