"""A pickle names what no checkpoint needs.

## What it checks
The pickles of the checkpoint (`.metadata`, common.pt, the files of ranks) name only what tensors, arguments and states of
random generators need. Nothing that they name is imported or called here; it is read with stand-ins.

## Why it matters
torch.load(weights_only=False), which Megatron uses for common.pt and legacy files, and the loader of `.metadata` import and
call whatever the pickle names: `os.system` as well as `torch.Size`.

## How to fix
Do not load the checkpoint before you know where the name comes from.

## When it can be wrong
Arguments may hold objects of a trainer's own module. If you know it, say so: `--ignore MEG027`, or a reason under
`[ignore]`. Its classes then have to be importable wherever the checkpoint is loaded.

## Seen in
The format: a pickle is a program (docs.python.org/3/library/pickle.html)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clipped
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.phrase import few


@rule("MEG027", "foreign-global", severity="error", on="megatron", when=lambda run: run.form != "empty")
def check(run: Megatron) -> Iterator[Problem]:
    for file, names in run.foreign.items():
        yield Problem(
            f"its pickle names {few([clipped(name) for name in names])}, which no checkpoint needs: "
            "loading it would import and may run that",
            file=file,
            hint="do not load it before you know where that comes from",
        )
