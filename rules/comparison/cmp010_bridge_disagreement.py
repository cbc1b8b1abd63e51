"""The built-in table and mbridge map a Megatron tensor differently.

## What it checks
With `--bridge both`: the built-in table of the family and mbridge map every name of the Megatron checkpoint to the same
Hugging Face names, and take the same rows for them.

## Why it matters
A mapping that agrees with itself proves nothing: an export and its check with the same table share their mistakes. If two
independent mappings agree, the diff can be trusted.

## How to fix
Find out which of the two is right for this model, and report the mistake to the other project.

## When it can be wrong
ckptcheck asks mbridge for the names of Transformer Engine's layers. Names that mbridge does not know are reported as skipped.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1716 (each expert overwrote the same tensor), NVIDIA-NeMo/Megatron-Bridge#4657 (expert_bias unmapped)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.text.formatting import count


@rule(
    "CMP010",
    "bridge-disagreement",
    severity="error",
    on="comparison",
    when=lambda comparison: comparison.bridge == "both",
)
def check(comparison: Comparison) -> Iterator[Problem]:
    disagreements, unknown = comparison.mbridge_disagreements
    for name, text in disagreements.items():
        yield Problem(
            text, key=name, hint="find out which is right for this model, and report the mistake to the other project"
        )
    if unknown and not disagreements:
        raise Skip(f"mbridge does not know {count(len(unknown), 'name')}: {group_names(unknown)}")
