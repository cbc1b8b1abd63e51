"""The quantization uses a feature that its own library has removed.

## What it checks
A compressed-tensors config does not ask for `actorder` `group`, `dynamic` or `true` (removed in 0.20 of compressed-tensors and in
vLLM 0.32), for a sparsity config with targets (vLLM 0.32 refuses it), or for the formats `marlin-24`, `sparse-bitmask` and
`sparse-24-bitmask` (compressed-tensors 0.20 has no compressor for them).

## Why it matters
compressed-tensors validates the config before anything is loaded, so transformers and vLLM stop with an error that speaks of
pydantic, on a checkpoint that loaded a version before.

## How to fix
Quantize again with `actorder: "weight"` or without it, or pin the versions that still load it (compressed-tensors before 0.20).

## When it can be wrong
Where the versions are pinned to older ones, all is well.

## Seen in
vllm-project/compressed-tensors (removal of 2026-08-27), vllm/model_executor/layers/quantization/compressed_tensors (0.32)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint

GONE = ("marlin-24", "sparse-bitmask", "sparse-24-bitmask")
BOTH = "compressed-tensors 0.20 and vLLM 0.32"


@rule(
    "QNT008",
    "removed-feature",
    severity="error",
    when=lambda ckpt: ckpt.quantization is not None and ckpt.quantization.method == "compressed-tensors",
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.quantization is not None
    assert ckpt.quantization.main is not None
    main = ckpt.quantization.main
    found: list[tuple[str, str]] = []
    for scheme in ckpt.quantization.schemes:
        order = scheme.weights.actorder if scheme.weights is not None else None
        if order is True or (isinstance(order, str) and order.lower() in ("group", "dynamic")):
            found.append((f"{scheme.key}.weights.actorder", f"actorder is {order}, which {BOTH} refuse"))
    formats = {main.path("format"): main.value.get("format")} | {
        f"{scheme.key}.format": scheme.format for scheme in ckpt.quantization.schemes if scheme.format
    }
    for key, form in formats.items():
        if form in GONE and not any(form in text for _, text in found):
            found.append(
                (
                    key,
                    f"the format {form} is gone: compressed-tensors 0.20 has no compressor and vLLM 0.32 no scheme for it",
                )
            )
    sparsity = main.value.get("sparsity_config")
    if isinstance(sparsity, dict) and sparsity.get("targets"):
        found.append((main.path("sparsity_config"), "there is a sparsity config, which vLLM 0.32 refuses"))
    for key, text in found:
        yield Problem(
            text, file=main.file, key=key, hint="quantize again without it, or pin compressed-tensors before 0.20"
        )
