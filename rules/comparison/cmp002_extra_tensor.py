"""The second checkpoint has a tensor that the first lacks.

## What it checks
Every tensor of the second checkpoint has a counterpart in the first, by the same rules as CMP001.

## Why it matters
The tensor came from elsewhere: a shard of an older save, or a head that the model does not have. vLLM refuses a name that it
does not know; other loaders load the tensor.

## How to fix
- Convert into an empty folder.
- If only a critic has the value head, compare with `--critic`.
- If the tensor is intended, the two checkpoints are not the same model.

## When it can be wrong
The second checkpoint may contain what the first stores elsewhere: a draft layer, an adapter merged under new names.

## Seen in
mflux-community/mflux#603, sgl-project/sglang#38616
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.text.formatting import count


@rule("CMP002", "extra-tensor", severity="error", on="comparison")
def check(comparison: Comparison) -> Iterator[Problem]:
    extra = comparison.match_result.extra
    if extra:
        first = next(iter(extra.values()))
        heads = all(comparison.is_head(name) for name in extra)
        yield Problem(
            f"{count(len(extra), 'tensor is', 'tensors are')} only in the second checkpoint: {group_names(extra)}",
            file=comparison.second.files.get(first),
            key=first,
            names=tuple(extra),
            hint="compare with --critic if one side is a critic"
            if heads
            else "convert into an empty folder, so that no shard of an older save remains",
        )
