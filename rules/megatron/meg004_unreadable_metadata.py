"""`.metadata` cannot be read.

## What it checks
`.metadata` is a pickle of torch.distributed.checkpoint's Metadata whose entries all describe a tensor or a run of bytes.
ckptcheck reads it without executing anything.

## Why it matters
Megatron and torch.distributed.checkpoint load nothing without it. It is the last file of a save, so a full disk truncates it.

## How to fix
Use an earlier iteration, or another copy of the file.

## When it can be wrong
ckptcheck cannot read the `.metadata` of another format, such as a storage plugin's. `--ignore MEG004` silences it.

## Seen in
Found in tests of broken saves; the native loader says EOFError or UnpicklingError
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.views import DcpCheckpoint
from ckptcheck.text.formatting import count


@rule(
    "MEG004",
    "unreadable-metadata",
    severity="error",
    on="dcp",
)
def check(run: DcpCheckpoint) -> Iterator[Problem]:
    for defect in run.contents.defects[:1]:
        more = f" ({count(len(run.contents.defects) - 1, 'more such entry', 'more such entries')})"
        text = defect.text + (more if len(run.contents.defects) > 1 else "")
        yield Problem(
            text, file=run.file(".metadata"), key=defect.key, hint="copy it again, or use an earlier iteration"
        )
