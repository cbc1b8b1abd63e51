"""The library of the quantization method refuses a setting of the quantization config.

## What it checks
- compressed-tensors: each group and its weights and activations have only settings that it knows, of the right types and
  values, and these go together: a strategy `group` with a size of groups, `block` with a structure of blocks, no scales of
  weights that are computed at run time, `quantization_status` one of five words.
- compressed-tensors, where weights are stored quantized: `config_groups` is there, `quantization_status` is `compressed` (a
  warning), and a `format` says how they are packed (a warning).
- compressed-tensors: nothing that its library has removed, that is, `actorder` `group`, `dynamic` or `true`, and the formats
  `marlin-24`, `sparse-bitmask` and `sparse-24-bitmask` (0.20); nor a sparsity config with targets, which vLLM 0.32 refuses.
- No other method stands beside `load_in_4bit` or `load_in_8bit`.
- AWQ: weights of the version gemm have zero points, also where `zero_point` is not true: AutoRound and GPTQModel write so for
  symmetric weights, and store zero points that are all 8.
- Quark: the settings for all modules, for single modules and for excluded ones are present, even if they are empty.
- TorchAO: `quant_type` is there.
- AutoRound: weights have 2 to 8 bits, and groups a size.
- bitsandbytes: switches are true or false, and the kinds of 4 bits are nf4 and fp4.

## Why it matters
compressed-tensors 0.20 parses `config_groups` with classes that forbid anything else; transformers, vLLM and SGLang parse with
them, and stop before they read a weight, also on a checkpoint that the version before loaded. `BitsAndBytesConfig` of
transformers raises a TypeError.

With a `quantization_status` of `frozen` or `initialized`, as tools of 2024 wrote it, transformers 5.23 builds modules whose
weights are still to be quantized, and starts what the file does not have for them (`weight`, `weight_zero_point`) from random
numbers.

## How to fix
Write what the tool wrote that quantized the weights. Of what was removed: quantize again without it (with `actorder:
"weight"`), or pin compressed-tensors before 0.20.

## When it can be wrong
With pinned older versions what was removed loads. A setting that a later compressed-tensors introduced is unknown to 0.20: such
a finding is a warning.

## Seen in
vllm-project/llm-compressor#2234, vllm-project/llm-compressor#2057 (`Extra inputs are not permitted` for `scale_dtype`, which an
older compressed-tensors does not know), vllm-project/compressed-tensors (removal of 2026-08-27)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.consumers.quantization_settings import list_refused_settings, list_unread_settings

LIBRARIES = {
    "compressed-tensors": "compressed-tensors 0.20 refuses the config",
    "bitsandbytes": "transformers 5.23 refuses the config",
    "quark": "Quark 0.13, with which transformers loads it, refuses the config",
    "torchao": "transformers 5.24 refuses the config",
    "auto-round": "transformers 5.24 refuses the config",
    "awq": "GPTQModel, with which transformers loads it, refuses it or invents what is missing",
}
"""Method → what its library does with a setting that it does not accept."""
REMOVED_FORMATS = ("marlin-24", "sparse-bitmask", "sparse-24-bitmask")
BOTH = "compressed-tensors 0.20 and vLLM 0.32"


@rule("QNT031", "rejected-setting", severity="error", on="quantization")
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    declared = ckpt.quantization.main_declaration
    if declared is None:
        return
    for key in ("load_in_4bit", "load_in_8bit"):
        if declared.value.get(key) is True and declared.method not in (None, "bitsandbytes"):
            yield Problem(
                f"{key} is true beside quant_method {declared.method}: transformers takes the weights for those of bitsandbytes",
                file=declared.file,
                key=declared.key_path(key),
                hint=f"remove {key}",
            )
    if declared.method not in LIBRARIES:
        return
    if ckpt.quantization.method == "compressed-tensors":
        yield from _find_removed(ckpt)
    if declared.method == "compressed-tensors" and any(stored.is_quantized for stored in ckpt.quantization.storages):
        for path, reason in list_unread_settings(declared.value):
            yield Problem(
                f"{path} {reason}",
                file=declared.file,
                key=declared.key_path(path),
                hint="write what the tool wrote that quantized the weights",
                severity=None if path == "config_groups" else "warning",
            )
    quantized = [stored for stored in ckpt.quantization.storages if stored.is_quantized]
    points = bool(quantized) and all("qzeros" in stored.parts for stored in quantized)
    for path, reason in list_refused_settings(declared.method, declared.value, stores_zero_points=points):
        yield Problem(
            f"{path} {reason}: {LIBRARIES[declared.method]}",
            file=declared.file,
            key=declared.key_path(path),
            hint="write what the tool wrote that quantized the weights",
            severity="warning" if "is not a setting of" in reason else None,
        )


def _find_removed(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    """Yield the features of a compressed-tensors config that its library has removed."""
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
            text = f"the format {form} was removed: compressed-tensors 0.20 has no compressor and vLLM 0.32 no scheme for it"
            features.append((key, text))
    sparsity = main.value.get("sparsity_config")
    if isinstance(sparsity, dict) and sparsity.get("targets"):
        features.append((main.key_path("sparsity_config"), "there is a sparsity config, which vLLM 0.32 refuses"))
    for key, text in features:
        yield Problem(
            text, file=main.file, key=key, hint="quantize again without it, or pin compressed-tensors before 0.20"
        )
