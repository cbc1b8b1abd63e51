"""The table of contents cannot be read.

## What it checks
`.metadata` is a pickle of torch.distributed.checkpoint's Metadata whose every entry describes a tensor or a run of bytes.
It is read without executing anything.

## Why it matters
Megatron and torch.distributed.checkpoint load nothing without it. It is the last file of a save, so a disk that ran full
leaves it short.

## How to fix
Take an earlier iteration, or another copy of the file.

## When it can be wrong
A table of contents of another format (of a storage plugin) cannot be read here either. `--ignore MEG004` silences it.

## Seen in
Found in tests of broken saves; the native loader says EOFError or UnpicklingError
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.phrase import count


@rule(
    "MEG004",
    "unreadable-metadata",
    severity="error",
    on="megatron",
    when=lambda run: run.form == "torch_dist" and run.contents is not None,
)
def check(run: Megatron) -> Iterator[Problem]:
    assert run.contents is not None
    for defect in run.contents.defects[:1]:
        more = f" ({count(len(run.contents.defects) - 1, 'more such entry', 'more such entries')})"
        text = defect.text + (more if len(run.contents.defects) > 1 else "")
        yield Problem(text, file=run.file(".metadata"), key=defect.key, hint="take another copy of it")
