"""The table of contents does not say where a chunk lies.

## What it checks
For every chunk of a tensor, and every run of bytes, `.metadata` names a file and a place in it.

## Why it matters
The loader stops with a KeyError.

## How to fix
Save again, or take an earlier iteration.

## When it can be wrong
It cannot: the writer names each place. `--ignore MEG012` silences it.

## Seen in
Faults injected into real checkpoints of megatron-core 0.16.1
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.phrase import count


@rule(
    "MEG012",
    "unplaced-chunk",
    severity="error",
    on="megatron",
    when=lambda run: run.form == "torch_dist" and run.contents is not None,
)
def check(run: Megatron) -> Iterator[Problem]:
    assert run.contents is not None
    lost = {
        key: count(number, "chunk")
        for key, tensor in run.tensors.items()
        if (number := sum(chunk.item is None for chunk in tensor.chunks))
    }
    lost |= {key: "its bytes" for key, item in run.contents.objects.items() if item is None}
    if lost:
        key, what = next(iter(lost.items()))
        more = f", and of {count(len(lost) - 1, 'further key')}" if len(lost) > 1 else ""
        yield Problem(
            f"the place of {what} is named nowhere{more}", file=run.file(".metadata"), key=key, hint="save again"
        )
