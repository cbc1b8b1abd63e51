"""Some of the server's checksums are of nothing.

## What it checks
No checksum is that of zero bytes.

## Why it matters
vLLM on a CPU packs its matrices and leaves parameters of size 0 behind. Their checksums are equal on every server, whatever it
computes with, so they prove nothing. Only logprobs can tell.

## How to fix
Give a SOURCE, so that logprobs are held against a trainer.

## When it can be wrong
It is no fault of the server; it says how far this report can be trusted.

## Seen in
vLLM 0.32.0 on CPUs
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.phrase import count, few
from ckptcheck.refit.attached import Attached


@rule(
    "REF032",
    "unreadable-checksums",
    severity="warning",
    on="servers",
    when=lambda evidence: any(seen.checksums for seen in evidence.servers),
)
def check(evidence: Attached) -> Iterator[Problem]:
    for seen in evidence.servers:
        if blank := [name.partition("/")[2] for name in seen.checksums if name not in seen.readable]:
            yield Problem(
                f"{seen.url} gives the checksum of nothing for {count(len(blank), 'tensor')} of {len(seen.checksums):,}, which it"
                f" packed: {few(blank)}; of these only logprobs can tell",
                key=blank[0],
                hint="" if evidence.truth else "give the checkpoint as SOURCE, so that logprobs are compared",
            )
