"""A logprob is NaN.

## What it checks
Every logprob of engine, trainer and reference under the response mask.

## Why it matters
One NaN makes the loss of its whole batch NaN, and a metric that leaves it out says that all is well. In an engine NaN comes
from broken weights or a kernel; in a file it also stands for what JSON cannot hold.

## How to fix
Scan the weights (`ckptcheck scan`), then score the sequence alone.

## When it can be wrong
A writer may fill places with NaN for which the engine gave nothing, such as the first token or what a tool wrote, and
mark them as part of the response. Then the mask is wrong and not the model: take those tokens out of it. NaN outside
of the mask is not counted, and neither is a NaN that somebody replaced with 0 before the file was written.

## Seen in
PrimeIntellect-ai/prime-rl#2714: values up to 1e17 and NaN after a layerwise reload
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.parity.judging import logprob_columns, seen, whose
from ckptcheck.phrase import count


@rule("PAR003", "nan-logprob", severity="error", on="rollouts", when=lambda judged: judged.sound)
def check(judged: Judged) -> Iterator[Problem]:
    import numpy as np

    for column in logprob_columns(judged):
        if found := seen(judged, column, np.isnan):
            text = f"{whose(column)} is NaN for {count(found.number, 'token')} in {count(found.sequences, 'sequence')}"
            yield Problem(
                text, key=f"{column}, {found.place}", hint="score that sequence alone, and scan the weights for NaN"
            )
