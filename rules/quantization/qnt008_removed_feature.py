"""The quantization uses a feature that its own library has removed.

## What it checks
A compressed-tensors config does not contain:
- `actorder` `group`, `dynamic` or `true` (removed in compressed-tensors 0.20 and vLLM 0.32);
- a sparsity config with targets (vLLM 0.32 refuses it);
- the formats `marlin-24`, `sparse-bitmask` and `sparse-24-bitmask` (compressed-tensors 0.20 has no compressor for them).

## Why it matters
compressed-tensors validates the config before anything is loaded. So transformers and vLLM stop with an error about pydantic, on a
checkpoint that the previous version loaded.

## How to fix
Quantize again with `actorder: "weight"` or without it, or pin versions that still load it (compressed-tensors before 0.20).

## When it can be wrong
With pinned older versions the checkpoint loads.

## Seen in
vllm-project/compressed-tensors (removal of 2026-08-27), vllm/model_executor/layers/quantization/compressed_tensors (0.32)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import QuantizedCheckpoint

REMOVED_FORMATS = ("marlin-24", "sparse-bitmask", "sparse-24-bitmask")
BOTH = "compressed-tensors 0.20 and vLLM 0.32"


@rule(
    "QNT008",
    "removed-feature",
    severity="error",
    on="quantization",
    when=lambda ckpt: ckpt.quantization.method == "compressed-tensors",
)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    main = ckpt.quantization.declarations[0]
    features: list[tuple[str, str]] = []
    for scheme in ckpt.quantization.schemes:
        order = scheme.weights.actorder if scheme.weights is not None else None
        if order is True or (isinstance(order, str) and order.lower() in ("group", "dynamic")):
            features.append((f"{scheme.key}.weights.actorder", f"actorder is {order}, which {BOTH} refuse"))
    formats = {main.key_path("format"): main.value.get("format")} | {
        f"{scheme.key}.format": scheme.format for scheme in ckpt.quantization.schemes if scheme.format
    }
    for key, form in formats.items():
        if form in REMOVED_FORMATS and not any(form in text for _, text in features):
            features.append(
                (
                    key,
                    f"the format {form} was removed: compressed-tensors 0.20 has no compressor and vLLM 0.32 no scheme for it",
                )
            )
    sparsity = main.value.get("sparsity_config")
    if isinstance(sparsity, dict) and sparsity.get("targets"):
        features.append((main.key_path("sparsity_config"), "there is a sparsity config, which vLLM 0.32 refuses"))
    for key, text in features:
        yield Problem(
            text, file=main.file, key=key, hint="quantize again without it, or pin compressed-tensors before 0.20"
        )
