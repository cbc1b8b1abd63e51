"""The format of a delta is not known, so nothing could be applied.

## What it checks
- A delta is a folder whose index names a delta_encoding (slime, miles, ModelExpress, Stitch), or verl's flushes in safetensors
  files.
- Its encoding is xor or overwrite, its compression zstd, its checksums xxh3-128, blake3 or adler32; a flush is indices or dense.

## Why it matters
An engine raises an error (SGLang: `delta encoding … not supported`), or it would have to guess. Here no tensor of the result can
be compared, so the verdict is never clean.

## How to fix
Publish with an encoding that the engine knows. If the format is new, say so in an issue, with the source that writes it.

## When it can be wrong
A format that ckptcheck does not know yet may be one that your engine reads.

## Seen in
THUDM/slime docker/patch/latest/sglang-pull_weights.patch (`NotImplementedError`), ai-dynamo/modelexpress
modelexpress_rl/inference/receiver.py (`unsupported compression format`)
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.checkpoint.deltas.delta import UNKNOWN


@rule("DEL001", "unknown-delta-format", severity="error", on="deltas")
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    for chain in chains:
        for delta in chain.deltas:
            for defect in delta.defects:
                if defect.kind == UNKNOWN:
                    yield Problem(
                        f"{delta.name} is no delta that ckptcheck knows: {defect.text}",
                        key=defect.key,
                        hint="publish it in an encoding that the engine reads",
                    )
                    break
