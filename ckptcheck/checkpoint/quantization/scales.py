"""Lists the scales of quantized weights, and the scales of the key-value cache with the modules to which vLLM assigns them.

Source for the cache: vllm/model_executor/layers/quantization/base_config.py and fp8.py `get_cache_scale_mapper` (0.32).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.quantization.storage import ModuleTensor

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

SIGN = ("F32", "F16", "BF16")
"""dtypes whose last byte, in file order, holds the sign."""
CACHE_SCALE = re.compile(
    r"\.(?:(?P<leaf>k|v|kv)_scale|(?P<output>k|v)_proj\.output_scale|(?P<cache>k|v)_cache\.scale)$"
)
PROJECTION = re.compile(r"\.(?:[kv]_proj|qk(?:qk)?v_proj)$")


def iter_scales(ckpt: Checkpoint) -> Iterator[tuple[str, str, ModuleTensor]]:
    """Yield the name of each scale, the name of its weight, and its entry in the header."""
    assert ckpt.quantization is not None
    for stored, modules in ckpt.quantization.storages.items():
        if not stored.is_quantized or stored.weight is None:
            continue
        parts = [part for role, part in stored.parts.items() if "scale" in role or role in ("SCB", "absmax")]
        for module in modules if parts else ():
            weight = stored.name(module, stored.weight.role)
            for part in parts:
                yield stored.name(module, part.role), weight, part


def cache_scales(ckpt: Checkpoint) -> dict[int, dict[str, str]]:
    """Map each layer of the language model with cache scales to "k", "v" or "kv" → the full name of the scale."""
    scales: dict[int, dict[str, str]] = {}
    stack = ckpt.components.stack
    for layer, names in ckpt.components.layers.items() if stack is not None else ():
        for name in sorted(names):
            if name.endswith("scale") and (match := CACHE_SCALE.search(f".{name}")):
                assert stack is not None
                part = match["leaf"] or match["output"] or match["cache"]
                scales.setdefault(layer, {})[part] = stack.full_name(layer, name)
    return scales


def scale_owner(name: str) -> str:
    """Return the module to which vLLM assigns a scale, within a layer: ``self_attn`` for ``self_attn.k_proj.k_scale``."""
    before = CACHE_SCALE.sub("", f".{name}").removesuffix(".attn")
    if re.match(r"\.(?:self_attn|mixer)\.", before) and not name.endswith("output_scale"):
        before = PROJECTION.sub("", before)
    return before.removeprefix(".")
