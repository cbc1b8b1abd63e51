"""A tensor of the first checkpoint is not in the second.

## What it checks
Every tensor of the first checkpoint has its counterpart in the second: under its name, under the one that the family's table
or a rename of transformers gives it, as part of a fused or stacked tensor, or as the tensor it is tied to. Buffers that
loaders compute anew are left out, and with `--critic` the heads.

## Why it matters
What a conversion drops is started from random numbers or zeros by the next loader, often without a word.

## How to fix
Convert again, with a converter that knows the family. With a bridge of Megatron, see that every rank took part in the export.

## When it can be wrong
A tensor may be dropped on purpose (multi-token prediction before serving); a family without a table is matched by names only.

## Seen in
THUDM/slime#2270, NVIDIA-NeMo/RL#2124 (gpt-oss), paiml/entrenar#258, NVIDIA-NeMo/Megatron-Bridge#1716
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.comparison.comparison import Comparison
from ckptcheck.comparison.naming import together
from ckptcheck.phrase import count


@rule("CMP001", "missing-tensor", severity="error", on="comparison")
def check(seen: Comparison) -> Iterator[Problem]:
    missing = seen.accounts.missing
    if missing:
        first = next(iter(missing.values()))
        heads = all(seen.is_head(name) for name in missing)
        yield Problem(
            f"{count(len(missing), 'tensor is', 'tensors are')} missing in the second checkpoint: {together(missing)}",
            file=seen.first.files.get(first),
            key=first,
            hint="convert again; with --critic the heads may differ" if heads else "convert again",
        )
