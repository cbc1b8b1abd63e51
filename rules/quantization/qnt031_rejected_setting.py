"""compressed-tensors refuses a setting of its config, or expects weights of another state.

## What it checks
- Each group of `config_groups` has, for weights and activations, a dictionary of settings that compressed-tensors 0.20 knows. One
  that a later version introduced is unknown to it, so the finding is a warning.
- Nothing that its library has removed, that is, `actorder` `group`, `dynamic` or `true`, and the formats `marlin-24`,
  `sparse-bitmask` and `sparse-24-bitmask` (0.20); nor a sparsity config with targets, which vLLM 0.32 refuses.
- Where weights are stored quantized, `quantization_status` is `compressed` (a warning).

## Why it matters
compressed-tensors 0.20 parses `config_groups` with classes that forbid anything else; transformers, vLLM and SGLang parse with
them, and stop before they read a weight, also on a checkpoint that the version before loaded.

With a `quantization_status` of `frozen` or `initialized`, as tools of 2024 wrote it, transformers 5.23 builds modules whose
weights are still to be quantized, and starts what the file does not have for them (`weight`, `weight_zero_point`) from random
numbers.

## How to fix
Write what the tool wrote that quantized the weights. Of what was removed: quantize again without it (with `actorder:
"weight"`), or pin compressed-tensors before 0.20.

## When it can be wrong
With pinned older versions what was removed loads. Values of settings are not judged: `--dry-load transformers` asks the library.

## Seen in
vllm-project/llm-compressor#2234, vllm-project/llm-compressor#2057 (`Extra inputs are not permitted` for `scale_dtype`, which an
older compressed-tensors does not know), vllm-project/compressed-tensors (removal of 2026-08-27)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.quantization.declarations import Declaration
from ckptcheck.checkpoint.views import QuantizedCheckpoint

# quantization/quant_args.py and quant_scheme.py of compressed-tensors 0.20
ARGUMENTS = frozenset((
    "num_bits", "type", "symmetric", "group_size", "strategy", "block_structure", "dynamic", "actorder", "scale_dtype",
    "zp_dtype", "observer", "observer_kwargs", "is_mx",
))  # fmt: skip
"""Keys that describe weights or activations; `is_mx` was one until 0.15."""
PARTS = ("weights", "input_activations", "output_activations")
GROUP = frozenset(("targets", *PARTS, "format"))
REMOVED_FORMATS = ("marlin-24", "sparse-bitmask", "sparse-24-bitmask")
BOTH = "compressed-tensors 0.20 and vLLM 0.32"
HINT = "write what the tool wrote that quantized the weights"


@rule("QNT031", "rejected-setting", severity="error", on="quantization")
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    main = ckpt.quantization.main_declaration
    if main is None or main.method != "compressed-tensors":
        return
    for key, text in _find_removed(ckpt, main):
        yield Problem(
            text, file=main.file, key=key, hint="quantize again without it, or pin compressed-tensors before 0.20"
        )
    status = main.value.get("quantization_status")
    if status != "compressed" and any(stored.is_quantized for stored in ckpt.quantization.storages):
        yield Problem(
            f"quantization_status is {'missing' if status is None else status}, and the weights are stored compressed: "
            "transformers builds the modules for weights that are still to be quantized, and fills their weights or zero points "
            "with random numbers; vLLM and SGLang do not read it",
            file=main.file,
            key=main.key_path("quantization_status"),
            severity="warning",
            hint=HINT,
        )
    for path, what in _find_unknown(main):
        yield Problem(
            f"{path} is {what}: compressed-tensors 0.20 refuses the config",
            file=main.file,
            key=main.key_path(path),
            severity="warning",
            hint=HINT,
        )


def _find_unknown(main: Declaration) -> Iterator[tuple[str, str]]:
    """Yield the path of each setting that compressed-tensors does not know or cannot read, and what it is."""
    groups = main.value.get("config_groups")
    for name, group in groups.items() if isinstance(groups, dict) else ():
        if not isinstance(group, dict):  # the name of a preset, with its targets
            continue
        yield from ((f"config_groups.{name}.{key}", "not a setting of a group") for key in group if key not in GROUP)
        for part in PARTS:
            inner = group.get(part)
            if inner is not None and not isinstance(inner, dict):
                yield f"config_groups.{name}.{part}", "not a dictionary of settings"
            for key in inner if isinstance(inner, dict) else ():
                if key not in ARGUMENTS:
                    yield f"config_groups.{name}.{part}.{key}", "not a setting of weights or activations"


def _find_removed(ckpt: QuantizedCheckpoint, main: Declaration) -> Iterator[tuple[str, str]]:
    """Yield the features that compressed-tensors has removed."""
    for scheme in ckpt.quantization.schemes:
        order = scheme.weights.actorder if scheme.weights is not None else None
        if order is True or (isinstance(order, str) and order.lower() in ("group", "dynamic")):
            yield f"{scheme.key}.weights.actorder", f"actorder is {order}, which {BOTH} refuse"
    formats = {main.key_path("format"): main.value.get("format")}
    formats |= {f"{scheme.key}.format": scheme.format for scheme in ckpt.quantization.schemes}
    for form in REMOVED_FORMATS:
        if (key := next((key for key, value in formats.items() if value == form), None)) is not None:
            yield (
                key,
                f"the format {form} was removed: compressed-tensors 0.20 has no compressor and vLLM 0.32 no scheme for it",
            )
    sparsity = main.value.get("sparsity_config")
    if isinstance(sparsity, dict) and sparsity.get("targets"):
        yield main.key_path("sparsity_config"), "there is a sparsity config, which vLLM 0.32 refuses"
