"""A pickle names an object that no checkpoint needs.

## What it checks
The pickles of the checkpoint (`.metadata`, common.pt, the files of ranks) name only what tensors, arguments and random states
need. ckptcheck reads them with stubs; it imports and calls nothing that they name.

## Why it matters
torch.load(weights_only=False), which Megatron uses for common.pt and legacy files, and the loader of `.metadata` import and
call whatever the pickle names: `os.system` as well as `torch.Size`.

## How to fix
Do not load the checkpoint before you know where the name comes from.

## When it can be wrong
Arguments may hold objects of a trainer's own module. If you trust it, use `--ignore MEG027`, or a reason under `[ignore]`.
Its classes must then be importable wherever the checkpoint is loaded.

## Seen in
The format: a pickle is a program (docs.python.org/3/library/pickle.html)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.text.formatting import join_truncated


@rule("MEG027", "foreign-global", severity="error", on="megatron", when=lambda run: run.form != "empty")
def check(run: Megatron) -> Iterator[Problem]:
    for file, names in run.unexpected_globals.items():
        yield Problem(
            f"its pickle names {join_truncated([clip(name) for name in names])}, which no checkpoint needs: "
            "loading it would import and may run that",
            file=file,
            hint="do not load it before you know where that comes from",
        )
