"""A data file ends before what should lie in it.

## What it checks
No place that `.metadata` names reaches beyond the end of its file.

## Why it matters
A full disk or a broken copy. The native loader says EOFError from inside the unpickler and names no file.

## How to fix
Copy the file again, or take an earlier iteration.

## When it can be wrong
Two files of different sizes that were swapped look the same. `--ignore MEG008` silences it.

## Seen in
Faults injected into real checkpoints of megatron-core 0.16.1
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron


@rule(
    "MEG008",
    "truncated-data-file",
    severity="error",
    on="megatron",
    when=lambda run: run.form == "torch_dist" and run.contents is not None,
)
def check(run: Megatron) -> Iterator[Problem]:
    assert run.contents is not None
    ends: dict[str, int] = {}
    for item in run.contents.items:
        ends[run.path_of(item)] = max(ends.get(run.path_of(item), 0), item.begin + item.length)
    for file, end in sorted(ends.items()):
        found = run.files.get(file)
        if found is not None and found.leaves is None and found.size < end:
            yield Problem(
                f"it has {found.size:,} bytes, and its last item ends at byte {end:,}",
                file=file,
                hint="copy it again, or take an earlier iteration",
            )
