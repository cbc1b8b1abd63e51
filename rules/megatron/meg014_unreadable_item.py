"""A data file does not hold the tensor that `.metadata` places there.

## What it checks
Each position that `.metadata` names holds an uncompressed archive of torch.save, with a tensor of the dtype and the number of
elements that `.metadata` gives. Archives that their writer compressed are left out.

## Why it matters
The files of two ranks were swapped, a file belongs to another save, or it is damaged. Loaders stop with an error that names
neither the file nor the tensor.

## How to fix
Copy the file again from the rank that wrote it.

## When it can be wrong
A storage plugin may write items in a format of its own. `--ignore MEG014` silences it.

## Seen in
Faults injected into real checkpoints of megatron-core 0.16.1
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.inspection import UnreadableChunk
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.text.formatting import count


@rule("MEG014", "unreadable-item", severity="error", on="megatron", when=lambda run: run.form != "empty")
def check(run: Megatron) -> Iterator[Problem]:
    by_file: dict[str, list[UnreadableChunk]] = {}
    for fault in run.inspection.faults:
        by_file.setdefault(fault.file, []).append(fault)
    for file, faults in by_file.items():
        more = f" ({count(len(faults) - 1, 'more such item')} in this file)" if len(faults) > 1 else ""
        yield Problem(
            f"its item cannot be read: {faults[0].reason}{more}",
            file=file,
            key=faults[0].key,
            hint="copy the file again from the rank that wrote it",
        )
