"""The second checkpoint lacks a tensor of the first.

## What it checks
- Every tensor of the first checkpoint has a counterpart in the second.
- A counterpart has the same name, or the name that the family's table or a rename of transformers gives it, or it is part of
  a fused or stacked tensor, or it is the tensor to which this one is tied.
- Buffers that loaders recompute are left out; with `--critic` also the heads.

## Why it matters
The next loader fills a dropped tensor with random numbers or zeros, often without a message.

## How to fix
Convert again, with a converter that supports the family. When exporting from Megatron, check that every rank took part in the
export.

## When it can be wrong
A tensor may be dropped on purpose (multi-token prediction before serving). A family without a table is matched by name only.

## Seen in
THUDM/slime#2270, NVIDIA-NeMo/RL#2124 (gpt-oss), paiml/entrenar#258, NVIDIA-NeMo/Megatron-Bridge#1716
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.text.formatting import count


@rule("CMP001", "missing-tensor", severity="error", on="comparison")
def check(comparison: Comparison) -> Iterator[Problem]:
    missing = comparison.match_result.missing
    if missing:
        first = next(iter(missing.values()))
        heads = all(comparison.is_head(name) for name in missing)
        yield Problem(
            f"{count(len(missing), 'tensor is', 'tensors are')} missing in the second checkpoint: {group_names(missing)}",
            file=comparison.first.files.get(first),
            key=first,
            names=tuple(missing),
            hint="convert again, or compare with --critic if one side is a critic" if heads else "convert again",
        )
