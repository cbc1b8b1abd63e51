"""The data files are not those that `.metadata` names: one is missing, too short, or named nowhere.

## What it checks
- Every file that `.metadata` names lies beside it, and every item that it places in a file ends within that file.
- `.metadata` names every `.distcp` file of the folder (a warning).

## Why it matters
- Each rank writes its own files. A node's local disk that was not gathered, or an upload that stopped, omits some. The loader
  reports that only at the end of a long trace.
- A full disk or a broken copy truncated the file. The native loader raises an EOFError inside the unpickler and names no file.
- Fewer ranks saved over a save of more ranks: the checkpoint loads, but the old files remain, take space, and are uploaded with
  it. If the save of more ranks is the new one, `.metadata` is the old file.

## How to fix
Copy the files of all ranks into one folder, copy the short file again, or use an earlier iteration. Compare the times of the files,
and delete those of the earlier save.

## When it can be wrong
- A tool that reads only some tensors needs only their files.
- Two swapped files of different sizes look the same.
- A save in progress has files that no `.metadata` names yet.

## Seen in
huggingface/accelerate#3010, NVIDIA/Megatron-LM#1530; faults injected into real checkpoints of megatron-core 0.16.1, and two saves
of different world sizes by it
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.megatron import DcpCheckpoint
from ckptcheck.text.formatting import count, join_truncated


@rule("MEG007", "incomplete-data-file", severity="error", on="dcp")
def check(run: DcpCheckpoint) -> Iterator[Problem]:
    keys: dict[str, list[str]] = {}
    for key, item in run.all_items():
        if run.path_of(item) not in run.files and not run.escapes(item.file):
            keys.setdefault(run.path_of(item), []).append(key)
    for file, missing in sorted(keys.items()):
        yield Problem(
            f"the file is missing; it should hold {count(len(missing), 'chunk')}: {join_truncated(set(missing))}",
            file=file,
            hint="copy the files of all ranks here; if no node has it, the save did not finish: use an earlier iteration",
        )
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
    data = [name for name in run.files if name.endswith(".distcp") and name.startswith(run.file(""))]
    stale = [name for name in data if name not in ends]
    if stale and run.contents.readable:
        yield Problem(
            f".metadata does not name {count(len(stale), 'data file')}; an earlier save of more ranks leaves such files: "
            f"{join_truncated(stale)}",
            file=stale[0],
            hint="compare their times with .metadata's, and delete those of the earlier save",
            severity="warning",
        )
