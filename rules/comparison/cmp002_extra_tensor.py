"""A tensor of the second checkpoint is not in the first.

## What it checks
Every tensor of the second checkpoint has its counterpart in the first, by the same rules as CMP001.

## Why it matters
It came from elsewhere: a shard of an older save, a head that the model does not have. vLLM stops at a name that it does not
know; other loaders take the tensor.

## How to fix
Convert into an empty folder. A value head that only a critic has is let be with `--critic`.
If the tensor is meant, the two are not the same model.

## When it can be wrong
The second may carry what the first keeps elsewhere: a draft layer, an adapter merged under new names.

## Seen in
mflux-community/mflux#603, sgl-project/sglang#38616
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.comparison.comparison import Comparison
from ckptcheck.comparison.naming import together
from ckptcheck.phrase import count


@rule("CMP002", "extra-tensor", severity="error", on="comparison")
def check(seen: Comparison) -> Iterator[Problem]:
    extra = seen.accounts.extra
    if extra:
        first = next(iter(extra.values()))
        heads = all(seen.is_head(name) for name in extra)
        yield Problem(
            f"{count(len(extra), 'tensor is', 'tensors are')} only in the second checkpoint: {together(extra)}",
            file=seen.second.files.get(first),
            key=first,
            hint="with --critic the heads may differ"
            if heads
            else "convert into an empty folder, if an older save left them there",
        )
