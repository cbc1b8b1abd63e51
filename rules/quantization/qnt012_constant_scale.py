"""All scales of the model are one and the same number.

## What it checks
Over at least eight quantized weights the scales of one kind are not all the same number.

## Why it matters
Scales follow the weights, so they differ. One number everywhere is what a conversion leaves that allocated the scales and never
computed them, or cast the weights to FP8 as they were: what is small is then lost below the smallest number of the format.

## How to fix
Quantize again, with scales from the weights; for scales of inputs, with a calibration.

## When it can be wrong
A cast to FP8 with a scale of one is legal, and some training in FP8 keeps such weights.

## Seen in
vllm-project/vllm#54444, sgl-project/sglang#23625
"""

from collections.abc import Iterator
from math import prod

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.quantization.scales import scales_of
from ckptcheck.phrase import count

LEAST = 8


@rule("QNT012", "constant-scale", severity="warning", when=lambda ckpt: ckpt.quantization is not None)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    kinds: dict[str, list[str]] = {}
    seen: dict[str, set[float | None]] = {}
    for name, _, part in scales_of(ckpt):
        stats = ckpt.values.tensors.get(name)
        if stats is not None:
            kinds.setdefault(part.role, []).append(name)
            usable = (stats.constant or prod(part.shape) == 1) and not stats.zero and not stats.nan and not stats.inf
            seen.setdefault(part.role, set()).add(stats.absmax if usable else None)
    for role, names in kinds.items():
        if len(names) >= LEAST and len(seen[role]) == 1 and None not in seen[role]:
            value = next(iter(seen[role]))
            yield Problem(
                f"{count(len(names), 'tensor')} called {role} all hold the same number, {value:.6g}: they were never computed",
                file=ckpt.holders[names[0]],
                key=names[0],
                hint="quantize again, with scales computed from the weights",
            )
    ckpt.require_values()
