"""The same tensor has different dtypes in different layers.

## What it checks
Among the floating-point dtypes of 16 bits and more, each tensor has one dtype over all layers (and all experts).
Between different tensors dtypes may differ: norms and router biases are often kept in F32.

## Why it matters
Nobody chooses this: a merge of two checkpoints, a resumed conversion or a patched layer does. Engines cast silently
to one dtype, so layers that were trained in F32 lose bits, and a trainer that keeps dtypes trains with two.

## How to fix
Convert once more from one source, with one dtype.

## When it can be wrong
Somebody may keep the first and the last layers, or those of multi-token prediction, in a wider dtype on purpose, and
recipes with mixed precision do; that is why it is a warning. `--ignore CFG018` there. A model that was cast as a
whole, or of which the same tensor was cast in every layer, is uniform and passes. Scales are not looked at.

## Seen in
sgl-project/sglang#37133, sgl-project/sglang#31213 (biases of some layers cast)
"""

from collections import Counter
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.phrase import count, few

FLOATS = frozenset(("F16", "BF16", "F32", "F64"))


@rule("CFG018", "mixed-dtype", severity="warning", when=lambda ckpt: bool(ckpt.anatomy.layers))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    anatomy = ckpt.anatomy
    assert anatomy.stack is not None
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
            f"{'is' if len(names) == 1 else 'are'} {common}: {few(names)}",
            file=ckpt.holders[min(names)],
            key=min(names),
            hint="convert once more from one source, with one dtype",
        )
