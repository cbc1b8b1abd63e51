"""All scales of the model are the same number.

## What it checks
Over at least eight quantized weights, the scales of one kind are not all the same number.

## Why it matters
Scales follow the weights, so they differ. They are all equal if a conversion allocated the scales and never computed them, or cast
the weights to FP8 without scaling. Small weights are then lost below the smallest number of the format.

## How to fix
Quantize again, with scales computed from the weights; for scales of inputs, with a calibration.

## When it can be wrong
A cast to FP8 with a scale of one is legal, and some FP8 training keeps such weights.

## Seen in
vllm-project/vllm#54444, sgl-project/sglang#23625
"""

from collections.abc import Iterator
from math import prod

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.quantization.scales import iter_scales
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.text.formatting import count

MIN_SCALES = 8
"""Fewest weights for a finding: with fewer, as in a model of one layer, equal scales may be chance."""


@rule("QNT012", "constant-scale", severity="warning", on="quantization")
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    kinds: dict[str, list[str]] = {}
    values: dict[str, set[float | None]] = {}
    for name, _, part in iter_scales(ckpt):
        stats = ckpt.values.tensors.get(name)
        if stats is not None:
            kinds.setdefault(part.role, []).append(name)
            usable = (stats.constant or prod(part.shape) == 1) and not stats.zero and not stats.nan and not stats.inf
            values.setdefault(part.role, set()).add(stats.absmax if usable else None)
    for role, names in kinds.items():
        if len(names) >= MIN_SCALES and len(values[role]) == 1 and None not in values[role]:
            value = next(iter(values[role]))
            yield Problem(
                f"{count(len(names), 'tensor')} called {role} all hold the same number, {value:.6g}: they were never computed",
                file=ckpt.tensor_to_file[names[0]],
                key=names[0],
                hint="quantize again, with scales computed from the weights",
            )
    ckpt.require_values()
