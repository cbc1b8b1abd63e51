"""A data file is shorter than `.metadata` says.

## What it checks
Every item that `.metadata` places in a file ends within that file.

## Why it matters
A full disk or a broken copy truncated the file. The native loader raises an EOFError inside the unpickler and names no file.

## How to fix
Copy the file again, or use an earlier iteration.

## When it can be wrong
Two swapped files of different sizes look the same. `--ignore MEG008` silences it.

## Seen in
Faults injected into real checkpoints of megatron-core 0.16.1
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.views import DcpCheckpoint


@rule(
    "MEG008",
    "truncated-data-file",
    severity="error",
    on="dcp",
)
def check(run: DcpCheckpoint) -> Iterator[Problem]:
    ends: dict[str, int] = {}
    for item in run.contents.items:
        ends[run.path_of(item)] = max(ends.get(run.path_of(item), 0), item.begin + item.length)
    for file, end in sorted(ends.items()):
        entry = run.files.get(file)
        if entry is not None and entry.outside_link is None and entry.size < end:
            yield Problem(
                f"it has {entry.size:,} bytes, but its last item ends at byte {end:,}",
                file=file,
                hint="copy it again, or use an earlier iteration",
            )
