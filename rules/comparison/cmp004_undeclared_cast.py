"""A tensor has another dtype than its counterpart, and no config says so.

## What it checks
Where dtypes differ, the second checkpoint's config names the dtype that the tensor has there, or the cast loses nothing. A
router's bias may not be narrowed at all. The values are compared after the cast. `--cast` names a dtype to compare in.

## Why it matters
A cast that nobody asked for rounds every weight: a trainer that resumes from the copy does not continue the same run. Of a
router bias between 6.8 and 7.1, bf16 leaves 8 values of 238, and 98 % of the tokens go to other experts.

## How to fix
Convert in the dtype of the source, or write the new dtype into config.json.

## When it can be wrong
Where the config says nothing of dtypes, or the target is a single file, the cast may be meant: say so with `--cast`.

## Seen in
ISEEKYAN/Megatron-LM#81, sgl-project/sglang#37133
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.comparison.comparison import Comparison
from ckptcheck.comparison.naming import together
from ckptcheck.phrase import count


@rule("CMP004", "undeclared-cast", severity="error", on="comparison")
def check(seen: Comparison) -> Iterator[Problem]:
    groups: dict[tuple[str, str, bool], list[str]] = {}
    for found in seen.undeclared:
        groups.setdefault((found.first, found.second, found.comparable), []).append(found.name)
    for (ours, theirs, comparable), names in groups.items():
        declared = seen.second.declared
        why = f"and the config declares {declared or 'no dtype'}" if comparable else "which says nothing of the numbers"
        yield Problem(
            f"{count(len(names), 'tensor is', 'tensors are')} {ours} in the first checkpoint and {theirs} in the second, "
            f"{why}: {together(names)}",
            key=names[0],
            hint="convert in the dtype of the source, or name the dtype that is meant with --cast",
        )
