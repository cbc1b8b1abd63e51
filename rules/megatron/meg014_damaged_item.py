"""A data file does not hold the tensor that belongs there, or its bytes do not match their checksum.

## What it checks
- Each position that `.metadata` names holds an uncompressed archive of torch.save, with a tensor of the dtype and the number of
  elements that `.metadata` gives. Archives that their writer compressed are left out.
- The CRC-32 of every record of every archive, including legacy files. There is nothing to compare if the writer disabled checksums
  (`torch.serialization.set_crc32_options`).

## Why it matters
- The files of two ranks were swapped, a file belongs to another save, or it is damaged. Loaders stop with an error that names
  neither the file nor the tensor.
- `torch.load` does not check the checksums, so a flipped bit or a block of zeros loads without an error.

## How to fix
Copy the file again from the rank that wrote it. If that copy is broken too, use an earlier iteration.

## When it can be wrong
- A storage plugin may write items in a format of its own.
- A tool may change tensors in place without updating the checksum.

## Seen in
Faults injected into real checkpoints of megatron-core 0.16.1: one float flipped and 4 KB zeroed both load silently
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.inspection import UnreadableChunk
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.text.formatting import count, join_truncated


@rule("MEG014", "damaged-item", severity="error", on="megatron", when=lambda run: run.form != "empty")
def check(run: Megatron) -> Iterator[Problem]:
    yield from _find_unreadable(run)
    yield from _find_corrupt(run)


def _find_unreadable(run: Megatron) -> Iterator[Problem]:
    by_file: dict[str, list[UnreadableChunk]] = {}
    for fault in run.inspection.faults:
        by_file.setdefault(fault.file, []).append(fault)
    for file, faults in by_file.items():
        more = f" ({count(len(faults) - 1, 'more such item')} in this file)" if len(faults) > 1 else ""
        yield Problem(
            f"its item cannot be read: {faults[0].reason}{more}",
            file=file,
            key=faults[0].key,
            hint="copy the file again from the rank that wrote it; if it is the same there, use an earlier iteration",
            names=tuple(dict.fromkeys(fault.key for fault in faults)),
        )


def _find_corrupt(run: Megatron) -> Iterator[Problem]:
    corrupt: dict[str, list[str]] = {}
    for record, result in run.record_stats:
        if result.corrupt:
            corrupt.setdefault(record.file, []).append(record.key)
    for file, keys in corrupt.items():
        yield Problem(
            f"{count(len(keys), 'record does', 'records do')} not match "
            f"the checksum written with {'it' if len(keys) == 1 else 'them'}: "
            f"{join_truncated(set(keys))}; torch.load does not notice",
            file=file,
            key=keys[0],
            hint="copy the file again, or use an earlier iteration",
        )
