"""The built-in table and mbridge map a tensor of Megatron differently.

## What it checks
With `--bridge both`: every name of the Megatron checkpoint is mapped by the built-in table of the family and by mbridge, and
both give the same Hugging Face names and take the same rows for them.

## Why it matters
One mapping that agrees with itself proves nothing: an export and its check by the same table are wrong together. Where two that
were written apart agree, the diff can be trusted.

## How to fix
See which of the two is right for this model, and report it to the other.

## When it can be wrong
mbridge is asked for the names of Transformer Engine's layers; names that it does not know are reported as skipped.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1716 (each expert overwrote the same tensor), NVIDIA-NeMo/Megatron-Bridge#4657 (expert_bias unmapped)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.comparison.comparison import Comparison
from ckptcheck.comparison.naming import together
from ckptcheck.phrase import count


@rule("CMP010", "bridge-disagreement", severity="error", on="comparison", when=lambda seen: seen.bridge == "both")
def check(seen: Comparison) -> Iterator[Problem]:
    found, unknown = seen.disagreements
    for name, how in found.items():
        yield Problem(how, key=name, hint="see which is right for this model, and report it to the other")
    if unknown and not found:
        raise Skip(f"mbridge does not know {count(len(unknown), 'name')}: {together(unknown)}")
