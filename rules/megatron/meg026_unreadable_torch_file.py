"""A file of torch.save cannot be read.

## What it checks
`common.pt` and the `model_optim_rng.pt` of every rank are archives as torch.save writes them: uncompressed, with one complete
`data.pkl`.

## Why it matters
Megatron stops while it loads. A broken copy or a full disk leaves such files.

## How to fix
Copy the file again, or use an earlier iteration.

## When it can be wrong
Files of torch before 1.6 are no archives: load and save them once. `--ignore MEG026` silences it.

## Seen in
Faults injected into real checkpoints of megatron-core 0.16.1
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.megatron import Megatron


@rule("MEG026", "unreadable-torch-file", severity="error", on="megatron", when=lambda run: run.form != "empty")
def check(run: Megatron) -> Iterator[Problem]:
    for file, defect in run.unreadable_files.items():
        yield Problem(defect.text, file=file, hint="copy it again, or use an earlier iteration")
