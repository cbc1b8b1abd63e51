"""The whole save differs in tensors that no delta names.

## What it checks
In a comparison of a chain with a whole save, some delta of the chain names each tensor that differs. If a named tensor differs,
the rule is silent, because the save is then of another step, or the chain is wrong (CMP005).

## Why it matters
The delta is incomplete: the trainer changed the tensor and did not send it, so that every engine that follows the deltas keeps
the old one. A checksum for each sent tensor cannot see this.

## How to fix
Look for what the export of the deltas leaves out: buffers that are no parameters (a router's correction bias), frozen modules
that were unfrozen, the tensors of one pipeline stage.

## When it can be wrong
The whole save is of another step than the last delta, or was converted (another dtype of some tensors).

## Seen in
huggingface/trl#5937 (the steps between syncs were never sent), radixark/miles#3159 (347 tensors held back)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.text.formatting import count


@rule(
    "DEL019",
    "undeclared-change",
    severity="error",
    on="comparison",
    when=lambda comparison: len(comparison.deltas) == 1,
)
def check(comparison: Comparison) -> Iterator[Problem]:
    named = frozenset[str]().union(*(chain.changed_names for chain in comparison.deltas))
    different = [pair for pair, _, _ in comparison.value_differences.different]
    silent = [pair.name for pair in different if not named.intersection(pair.names)]
    if silent and len(silent) == len(different):
        yield Problem(
            f"{count(len(silent), 'tensor differs', 'tensors differ')} from the whole save, and no delta names "
            f"{'it' if len(silent) == 1 else 'them'}: {group_names(silent)}",
            key=silent[0],
            names=tuple(silent),
            hint="look for what the export of the deltas leaves out, or for a base that had other values there from the start",
        )
