"""The bytes of an item do not have the checksum that was written with them.

## What it checks
The CRC-32 of every record of every archive, legacy files included. Where the writer switched checksums off
(`torch.serialization.set_crc32_options`), there is nothing to compare.

## Why it matters
torch.load does not look at the checksums, so a flipped bit or a block of zeros loads without a word.

## How to fix
Copy the file again from where it was written; if it is as broken there, take an earlier iteration.

## When it can be wrong
A tool that changes tensors in place and leaves the checksum. `--ignore MEG015` silences it.

## Seen in
Faults injected into real checkpoints (one float flipped, 4 KB zeroed): both load silently
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.phrase import count, few


@rule("MEG015", "checksum-mismatch", severity="error", on="megatron", when=lambda run: run.form != "empty")
def check(run: Megatron) -> Iterator[Problem]:
    found: dict[str, list[str]] = {}
    for seen in run.swept:
        if seen.corrupt:
            found.setdefault(seen.record.file, []).append(seen.record.key)
    for file, keys in found.items():
        yield Problem(
            f"{count(len(keys), 'record differs', 'records differ')} from the checksum that was written with it, "
            f"of {few(set(keys))}: torch.load does not notice",
            file=file,
            key=keys[0],
            hint="copy the file again, or take an earlier iteration",
        )
