"""`.metadata` does not say where a chunk lies.

## What it checks
`.metadata` names a file and a position in it for every chunk of a tensor, and for every run of bytes.

## Why it matters
The loader stops with a KeyError.

## How to fix
Save again, or use an earlier iteration.

## When it can be wrong
It cannot: the writer names each position. `--ignore MEG012` silences it.

## Seen in
Faults injected into real checkpoints of megatron-core 0.16.1
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.views import DcpCheckpoint
from ckptcheck.text.formatting import count


@rule(
    "MEG012",
    "unplaced-chunk",
    severity="error",
    on="dcp",
)
def check(run: DcpCheckpoint) -> Iterator[Problem]:
    unplaced = {
        key: count(number, "chunk")
        for key, tensor in run.tensors.items()
        if (number := sum(chunk.item is None for chunk in tensor.chunks))
    }
    unplaced |= {key: "its bytes" for key, item in run.contents.objects.items() if item is None}
    if unplaced:
        key, what = next(iter(unplaced.items()))
        more = (
            f", nor where {count(len(unplaced) - 1, 'further key lies', 'further keys lie')}"
            if len(unplaced) > 1
            else ""
        )
        verb = "lies" if what == "1 chunk" else "lie"
        yield Problem(
            f"it does not say where {what} {verb}{more}", file=run.file(".metadata"), key=key, hint="save again"
        )
