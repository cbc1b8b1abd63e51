"""Bytes do not match the checksum that was written with them.

## What it checks
The CRC-32 of every record of every archive, including legacy files. There is nothing to compare if the writer disabled
checksums (`torch.serialization.set_crc32_options`).

## Why it matters
torch.load does not check the checksums, so a flipped bit or a block of zeros loads without an error.

## How to fix
Copy the file again from where it was written. If that copy is broken too, use an earlier iteration.

## When it can be wrong
A tool may change tensors in place without updating the checksum. `--ignore MEG015` silences it.

## Seen in
Faults injected into real checkpoints (one float flipped, 4 KB zeroed): both load silently
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.text.formatting import count, join_truncated


@rule("MEG015", "checksum-mismatch", severity="error", on="megatron", when=lambda run: run.form != "empty")
def check(run: Megatron) -> Iterator[Problem]:
    corrupt: dict[str, list[str]] = {}
    for stats in run.record_stats:
        if stats.corrupt:
            corrupt.setdefault(stats.record.file, []).append(stats.record.key)
    for file, keys in corrupt.items():
        yield Problem(
            f"{count(len(keys), 'record does', 'records do')} not match "
            f"the checksum written with {'it' if len(keys) == 1 else 'them'}: "
            f"{join_truncated(set(keys))}; torch.load does not notice",
            file=file,
            key=keys[0],
            hint="copy the file again, or use an earlier iteration",
        )
