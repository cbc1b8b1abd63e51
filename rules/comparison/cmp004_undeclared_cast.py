"""A tensor and its counterpart have different dtypes, and no config declares the cast.

## What it checks
- Where dtypes differ, the config of the second checkpoint names the dtype that the tensor has there, or the cast is lossless.
- A router's bias must not be narrowed at all.
- The values are compared after the cast. `--cast` names a dtype in which to compare.

## Why it matters
An unintended cast rounds every weight: a trainer that resumes from the copy does not continue the same run. bf16 leaves 8 of
238 distinct values of a router bias between 6.8 and 7.1, and 98 % of the tokens go to other experts.

## How to fix
Convert in the dtype of the source, or write the new dtype into config.json.

## When it can be wrong
If the config names no dtype, or the target is a single file, the cast may be intended: name it with `--cast`.

## Seen in
ISEEKYAN/Megatron-LM#81, sgl-project/sglang#37133
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.text.formatting import count


@rule("CMP004", "undeclared-cast", severity="error", on="comparison")
def check(comparison: Comparison) -> Iterator[Problem]:
    groups: dict[tuple[str, str, bool], list[str]] = {}
    for cast in comparison.undeclared_casts:
        groups.setdefault((cast.first, cast.second, cast.comparable), []).append(cast.name)
    for (ours, theirs, comparable), names in groups.items():
        declared = comparison.second.declared
        context = (
            f"and the config declares {declared or 'no dtype'}" if comparable else "a cast that cannot be compared"
        )
        yield Problem(
            f"{count(len(names), 'tensor is', 'tensors are')} {ours} in the first checkpoint and {theirs} in the second, "
            f"{context}: {group_names(names)}",
            key=names[0],
            names=tuple(names),
            hint="convert in the dtype of the source, or name the intended dtype with --cast"
            if comparable
            else "convert in the dtype of the source; if it was quantized, its config lacks the quantization_config",
        )
