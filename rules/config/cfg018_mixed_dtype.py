"""The same tensor has different dtypes in different layers.

## What it checks
Among the floating-point dtypes of 16 bits and more, each tensor has the same dtype in all layers (and all experts). Different
tensors may have different dtypes: norms and router biases are often kept in F32.

## Why it matters
This is rarely intended: it comes from a merge of two checkpoints, a resumed conversion or a patched layer. Engines silently
cast to one dtype, so layers that were trained in F32 lose bits, and a trainer that keeps dtypes trains with two.

## How to fix
Convert again from one source, with one dtype.

## When it can be wrong
Recipes with mixed precision keep the first and the last layers, or those of multi-token prediction, in a wider dtype on
purpose; therefore this is a warning. Use `--ignore CFG018` there. A model that was cast completely, or whose same tensor was
cast in every layer, is uniform and passes. Scales are not checked.

## Seen in
sgl-project/sglang#37133, sgl-project/sglang#31213 (biases of some layers cast)
"""

from collections import Counter
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.checkpoint.views import LayeredCheckpoint
from ckptcheck.text.formatting import count, join_truncated

FLOATS = frozenset(("F16", "BF16", "F32", "F64"))


@rule("CFG018", "mixed-dtype", severity="warning", on="layers")
def check(ckpt: LayeredCheckpoint) -> Iterator[Problem]:
    anatomy = ckpt.components
    ours = anatomy.stack.prefix + "."
    found: dict[str, dict[str, list[str]]] = {}
    for name, tensor in ckpt.tensors.items():
        # Scales of quantized weights come by the hundred thousand and belong to the quantization rules.
        if tensor.dtype in FLOATS and name.startswith(ours) and "scale" not in name:
            found.setdefault(INDEX.sub("{}", name), {}).setdefault(tensor.dtype, []).append(name)
    mixed = {template: dtypes for template, dtypes in found.items() if len(dtypes) > 1}
    alike: dict[tuple[str, str], list[str]] = {}
    for template, dtypes in mixed.items():
        numbers = Counter({dtype: len(names) for dtype, names in dtypes.items()})
        (common, _), *rest = numbers.most_common()
        for dtype, _ in rest:
            alike.setdefault((dtype, common), []).append(template)
    for (dtype, common), templates in alike.items():
        names = [name for template in templates for name in mixed[template][dtype]]
        yield Problem(
            f"{count(len(names), 'tensor is', 'tensors are')} {dtype} while the same in other layers or experts "
            f"{'is' if len(names) == 1 else 'are'} {common}: {join_truncated(names)}",
            file=ckpt.tensor_to_file[min(names)],
            key=min(names),
            hint="convert again from one source, with one dtype",
        )
