"""A tensor and its counterpart have different shapes.

## What it checks
- Counterparts have equal shapes.
- A tensor that the table splits into parts has the rows for it.
- Rows that pad the vocabulary of a Megatron checkpoint are left out first.
- Where the numbers show how the two are related, the finding says so: transposed, padding that was not cut off, the shard of
  one rank alone, shards concatenated along the wrong axis.

## Why it matters
Loaders refuse the tensor, or, where they only count elements, read rows as columns.

## How to fix
Run `ckptcheck scan` on both sides to see which one fits its config, and convert again.

## When it can be wrong
A vocabulary may be resized on purpose between the two.

## Seen in
verl-project/verl#7610 (buffers concatenated over ranks), transformers#47031 (experts transposed), ggml-org/llama.cpp#20200
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.difference_causes import explain_shape_differences
from ckptcheck.compare.matching.name_groups import group_names, name_template
from ckptcheck.compare.matching.pairing import TensorPair
from ckptcheck.text.formatting import format_shape


@rule("CMP003", "shape-difference", severity="error", on="comparison")
def check(comparison: Comparison) -> Iterator[Problem]:
    groups: dict[tuple[object, object, object, str], list[TensorPair]] = {}
    for pair in comparison.match_result.shape_mismatches:
        cause = explain_shape_differences(comparison).get(pair.name, "")
        groups.setdefault((name_template(pair.name), pair.first.shape, pair.second.shape, cause), []).append(pair)
    for (*_, cause), (first, *more) in groups.items():
        subject = f"{len(more) + 1:,} tensors are" if more else "it is"
        names = f": {group_names(pair.name for pair in (first, *more))}" if more else ""
        yield Problem(
            f"{subject} {format_shape(first.first.shape)} in the first checkpoint "
            f"and {format_shape(first.second.shape)} in the second"
            f"{f' ({cause})' if cause else ''}{names}",
            file=comparison.second.files.get(first.names[1]),
            key=first.name,
            hint="run ckptcheck scan on both to see which one fits its config",
        )
    for (number, name), reason in comparison.match_result.layout_errors.items():
        side = (comparison.first, comparison.second)[number]
        yield Problem(
            f"its name says that it fuses or stacks tensors, but it cannot be split: {reason}",
            file=side.files.get(name),
            key=name,
            hint="run ckptcheck scan to see whether it fits its config",
        )
