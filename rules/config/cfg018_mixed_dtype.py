"""The same tensor has different dtypes in different layers.

## What it checks
- Among the floating-point dtypes of 16 bits and more, each tensor has the same dtype in all layers (and all experts). Different
  tensors may have different dtypes: norms and router biases are often kept in F32.
- Among the dtypes of 8 bits (F8_E4M3, F8_E5M2, I8, U8 and others) the same holds for tensors of one shape. Where no config
  declares a quantization and there are no scales, floats of 8 bits are compared with the wider dtypes.
- A checkpoint that holds at least 20 tensors of BF16 and not more than two of F16 outside the layers, or the reverse, is not sure
  to label these right.

## Why it matters
This is rarely intended: it comes from a merge of two checkpoints, a resumed conversion or a patched layer. Engines silently
cast to one dtype, so layers that were trained in F32 lose bits, and a trainer that keeps dtypes trains with two.

A wrong label also mixes up dtypes of one width: the bytes belong to the other dtype, the size is right, and a loader reads every
number as another one. VAL006 sees that in the values of a matrix of 4 KiB or more. In a vector the values do not show it:
BF16 gains between 1.6 and 2.1, read as F16, lie between 1.95 and 2.01.

## How to fix
Convert again from one source, with one dtype.

## When it can be wrong
Recipes with mixed precision keep the first and the last layers, or the layers of multi-token prediction, in a wider dtype on
purpose; therefore this is a warning. Use `--ignore CFG018` there. A model that was cast completely, or whose same tensor was
cast in every layer, is uniform and passes. Scales are not checked.

## Seen in
sgl-project/sglang#37133, sgl-project/sglang#31213 (biases of some layers cast)
"""

from collections import Counter
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import LayeredCheckpoint
from ckptcheck.text.formatting import count, join_truncated, list_unless_single

FLOATS = frozenset(("F16", "BF16", "F32", "F64"))
BYTES = frozenset(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8"))
FLOATS_OF_8_BITS = frozenset(dtype for dtype in BYTES if dtype.startswith("F8_"))
HALVES = {"F16": "BF16", "BF16": "F16"}
MIN_COMMON, MAX_LONE = 20, 2
"""Fewest tensors of the common 16-bit dtype for a finding, and most tensors of the other one that may be mislabelled."""


@rule("CFG018", "mixed-dtype", severity="warning", on="layers")
def check(ckpt: LayeredCheckpoint) -> Iterator[Problem]:
    anatomy = ckpt.components
    ours = anatomy.stack.prefix + "."
    found: dict[tuple[str, tuple[int, ...] | None], dict[str, list[str]]] = {}
    quantization = ckpt.quantization
    is_declared = quantization is not None and quantization.main_declaration is not None
    has_scales = any("scale" in template for template in ckpt.forms_by_template)
    apart = BYTES if is_declared or has_scales else BYTES - FLOATS_OF_8_BITS
    for template, forms in ckpt.forms_by_template.items():
        # The quantization rules check the scales of quantized weights.
        if "scale" in template or len({dtype for dtype, _ in forms}) == 1:
            continue
        for name in ckpt.layout.names_by_template[template]:
            tensor = ckpt.tensors[name]
            if tensor.dtype not in FLOATS | BYTES or not name.startswith(ours):
                continue
            # A layer that was left unquantized among quantized ones has its own dtype, and one that is packed its own shape.
            found.setdefault((template, tensor.shape if tensor.dtype in apart else None), {}).setdefault(
                tensor.dtype, []
            ).append(name)
    mixed = {template: dtypes for template, dtypes in found.items() if len(dtypes) > 1}
    alike: dict[tuple[str, str], list[tuple[str, tuple[int, ...] | None]]] = {}
    for group, dtypes in mixed.items():
        numbers = Counter({dtype: len(names) for dtype, names in dtypes.items()})
        (common, _), *rest = numbers.most_common()
        for dtype, _ in rest:
            alike.setdefault((dtype, common), []).append(group)
    for (dtype, common), groups in alike.items():
        names = [name for group in groups for name in mixed[group][dtype]]
        yield Problem(
            f"{count(len(names), 'tensor is', 'tensors are')} {dtype} while the same in other layers or experts "
            f"{'is' if len(names) == 1 else 'are'} {common}: {join_truncated(names)}",
            file=ckpt.tensor_to_file[min(names)],
            key=min(names),
            hint="convert again from one source, with one dtype",
        )
    yield from _check_lone_labels(ckpt, ours)


def _check_lone_labels(ckpt: LayeredCheckpoint, ours: str) -> Iterator[Problem]:
    """Yield the few tensors outside the layers with a 16-bit dtype that no other tensor has."""
    halves = [
        (name, ckpt.tensors[name].dtype)
        for template, forms in ckpt.forms_by_template.items()
        if any(dtype in HALVES for dtype, _ in forms)
        for name in ckpt.layout.names_by_template[template]
        if ckpt.tensors[name].dtype in HALVES
    ]
    for dtype, common in HALVES.items():
        lone = [name for name, label in halves if label == dtype]
        others = len(halves) - len(lone)
        is_outside = not any(name.startswith(ours) or "scale" in name for name in lone)
        if 0 < len(lone) <= MAX_LONE and others >= MIN_COMMON and is_outside:
            yield Problem(
                f"{count(len(lone), 'tensor is', 'tensors are')} {dtype} while all {others:,} others of 16 bits are {common}"
                f"{list_unless_single(lone)}",
                file=ckpt.tensor_to_file[min(lone)],
                key=min(lone),
                hint=f"compare with the original; if these are bytes of {common}, correct the label in the header",
            )
