"""How a stored tensor is cut into the tensors of the plain Hugging Face form; each layout is a function with a name.

Sources: megatron/core/transformer/attention.py `get_query_key_value_tensors` (groups of queries, one key, one value),
megatron/core/fusions/fused_bias_swiglu.py (gate first, then up); transformers modeling_gpt_oss.py (gate and up alternate,
experts stored with inputs before outputs), modeling_mixtral.py of 5.x (`gate_up_proj` [experts, 2 × width, hidden]).
"""

from __future__ import annotations

from collections.abc import Callable

from ckptcheck.bridge.area import Area, LayoutError, joined
from ckptcheck.bridge.geometry import Geometry

Cut = Callable[[Area, Geometry], list[Area]]


def whole(area: Area, geometry: Geometry) -> list[Area]:
    """The tensor as it is."""
    return [area]


def transposed(area: Area, geometry: Geometry) -> list[Area]:
    """A matrix stored with inputs before outputs."""
    return [area.transposed()]


def glu(area: Area, geometry: Geometry) -> list[Area]:
    """Gate above up: two halves."""
    rows = area.shape[0] if area.shape else 1
    if rows % 2:
        raise LayoutError(f"it has {rows} rows, which do not make a gate and an up projection of equal size")
    return [area.cut(0, 0, rows // 2), area.cut(0, rows // 2, rows)]


def glu_transposed(area: Area, geometry: Geometry) -> list[Area]:
    """Gate beside up, stored with inputs before outputs (Llama 4)."""
    return glu(area.transposed(), geometry)


def glu_alternating(area: Area, geometry: Geometry) -> list[Area]:
    """Gate and up alternate; a matrix is stored with inputs before outputs (gpt-oss)."""
    plain = area.transposed() if len(area.shape) == 2 else area
    rows = plain.shape[0] if plain.shape else 1
    if rows % 2:
        raise LayoutError(f"it has {rows} outputs, which do not make a gate and an up projection of equal size")
    return [plain.cut(0, 0, rows, 2), plain.cut(0, 1, rows, 2)]


def qkv(area: Area, geometry: Geometry) -> list[Area]:
    """Megatron's interleaving: for every group its queries, its key, its value."""
    heads, groups, width = _attention(geometry)
    each = heads // groups
    rows = groups * (each + 2) * width
    if not area.shape or area.shape[0] != rows:
        raise LayoutError(f"it has {area.shape[0] if area.shape else 1} rows, and {groups} groups need {rows}")
    parts: list[list[Area]] = [[], [], []]
    for group in range(groups):
        at = group * (each + 2) * width
        for part, begin, number in zip(parts, (0, each, each + 1), (each, 1, 1), strict=True):
            part.append(area.cut(0, at + begin * width, at + (begin + number) * width))
    return [joined(part) for part in parts]


def qkv_plain(area: Area, geometry: Geometry) -> list[Area]:
    """All queries, all keys, all values, one under the other (Phi-3, engines)."""
    heads, groups, width = _attention(geometry)
    ends = (heads * width, (heads + groups) * width, (heads + 2 * groups) * width)
    if not area.shape or area.shape[0] != ends[2]:
        raise LayoutError(
            f"it has {area.shape[0] if area.shape else 1} rows, and {heads} heads with {groups} groups need {ends[2]}"
        )
    return [area.cut(0, begin, end) for begin, end in zip((0, *ends), ends, strict=False)]


def _attention(geometry: Geometry) -> tuple[int, int, int]:
    heads, groups, width = geometry.heads, geometry.groups, geometry.head_dim
    if not heads or not groups or not width or heads % groups:
        raise LayoutError("neither a config nor Megatron's arguments say how many heads and key-value groups there are")
    return heads, groups, width
