"""Some checksums of the server are checksums of no bytes.

## What it checks
- No checksum is the hash of zero bytes.

## Why it matters
- vLLM on a CPU packs its matrices and leaves parameters of size 0 behind. Their checksums are equal on every server,
  whatever it computes with, so they prove nothing. Only logprobs can show a fault.

## How to fix
- Give a SOURCE, so that the check compares logprobs with a trainer.

## When it can be wrong
- The finding is not a fault of the server. It says how far you can trust this report.

## Seen in
vLLM 0.32.0 on CPUs
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.refit.running_servers.trace import ServerEvidence
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "REF032",
    "unreadable-checksums",
    severity="warning",
    on="servers",
    when=lambda evidence: any(server.checksums for server in evidence.servers),
)
def check(evidence: ServerEvidence) -> Iterator[Problem]:
    for server in evidence.servers:
        empty = [place.partition("/")[2] for place in server.checksums if place not in server.readable_checksums]
        if empty:
            yield Problem(
                f"{server.url} gives the checksum of zero bytes for {len(empty):,} of {count(len(server.checksums), 'tensor')},"
                f" which it packed: {join_truncated(empty)}; only logprobs can show whether"
                f" {'it is' if len(empty) == 1 else 'they are'} right",
                key=empty[0],
                hint="" if evidence.trainer_scores else "give the checkpoint as SOURCE, so that logprobs are compared",
                names=tuple(empty),
            )
