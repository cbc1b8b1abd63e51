"""A place in a data file does not hold the tensor that should lie there.

## What it checks
Each place that `.metadata` names holds an archive as torch.save writes it, uncompressed, with a tensor of the dtype and the
number of elements that the table of contents gives. Archives that their writer compressed are left out.

## Why it matters
Files of two ranks that were exchanged, a file of another save, or damage. Loaders stop with an error that names neither the
file nor the tensor.

## How to fix
Copy the file again from the rank that wrote it.

## When it can be wrong
A storage plugin may write items of its own kind. `--ignore MEG014` silences it.

## Seen in
Faults injected into real checkpoints of megatron-core 0.16.1
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.inspection import Fault
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.phrase import count


@rule("MEG014", "unreadable-item", severity="error", on="megatron", when=lambda run: run.form != "empty")
def check(run: Megatron) -> Iterator[Problem]:
    by_file: dict[str, list[Fault]] = {}
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
