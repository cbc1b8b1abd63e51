"""A data file that `.metadata` names is missing, or shorter than it says.

## What it checks
- Every file that `.metadata` names lies beside it.
- Every item that `.metadata` places in a file ends within that file.

## Why it matters
- Each rank writes its own files. A node's local disk that was not gathered, or an upload that stopped, omits some. The loader
  reports that only at the end of a long trace.
- A full disk or a broken copy truncated the file. The native loader raises an EOFError inside the unpickler and names no file.

## How to fix
- Copy the files of all ranks into one folder.
- Copy the file again, or use an earlier iteration.

## When it can be wrong
- A tool that reads only some tensors needs only their files.
- Two swapped files of different sizes look the same.

## Seen in
huggingface/accelerate#3010, NVIDIA/Megatron-LM#1530; faults injected into real checkpoints of megatron-core 0.16.1
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.megatron import DcpCheckpoint
from ckptcheck.text.formatting import count, join_truncated


@rule("MEG007", "incomplete-data-file", severity="error", on="dcp")
def check(run: DcpCheckpoint) -> Iterator[Problem]:
    yield from _find_missing(run)
    yield from _find_truncated(run)


def _find_missing(run: DcpCheckpoint) -> Iterator[Problem]:
    keys: dict[str, list[str]] = {}
    for key, item in run.all_items():
        if run.path_of(item) not in run.files and not run.escapes(item.file):
            keys.setdefault(run.path_of(item), []).append(key)
    for file, missing in sorted(keys.items()):
        yield Problem(
            f"the file is missing; it should hold {count(len(missing), 'chunk')}: {join_truncated(set(missing))}",
            file=file,
            hint="copy the files of all ranks into the folder",
        )


def _find_truncated(run: DcpCheckpoint) -> Iterator[Problem]:
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
