"""A file of pickles names code that no checkpoint needs.

## What it checks
The pickles in the folder (`pytorch_model.bin`, `training_args.bin`, `optimizer.pt`, …) name only what they need:
- Files of weights name tensors, and plain values beside them.
- Other files may name classes of trainers, but no function of Python's own library that does more than make a plain object
  (`os.system`, `builtins.eval`), and nothing that loads further code (`torch.hub.load`).

ckptcheck reads them with stubs; it imports and calls nothing that they name. Where a pickle is broken, the rule lists the names up
to that place. A file that it cannot follow to its end (a broken zip, a million opcodes in a pickle that it refuses) is skipped.

## Why it matters
- `torch.load(weights_only=False)` and `pickle.load` import and call whatever the pickle names. This is how models carry attacks.
- `torch.load` since PyTorch 2.6 refuses a file of weights with such names; so do transformers and vLLM, which call it.
- Sound safetensors beside it do not help a program that opens this file.

## How to fix
Do not load the file before you know where the name comes from. Safetensors need no pickle: delete it.

## When it can be wrong
A trainer may store objects of its own among the weights. If you trust it, use `--ignore SET009`, or a reason under `[ignore]`.

## Seen in
The format: a pickle is a program (docs.python.org/3/library/pickle.html); CVE-2025-32434 (`torch.load` with weights_only=True
before 2.6)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.torch_bin import SUFFIXES, WEIGHTS, is_dangerous
from ckptcheck.text.formatting import join_truncated


@rule(
    "SET009",
    "code-in-pickle",
    severity="error",
    when=lambda ckpt: any(name.endswith(SUFFIXES) for name in ckpt.files) and ckpt.source.allows_sampling,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for file, content in ckpt.torch_bins.items():
        names = content.foreign_globals
        if not WEIGHTS.fullmatch(file):
            names = tuple(name for name in names if is_dangerous(name))
        if names:
            yield Problem(
                f"its pickle names {join_truncated([clip(name) for name in names])}, which no checkpoint needs: "
                "torch.load(weights_only=False) would import and may run that",
                file=file,
                hint="do not load this file before you know where that comes from; safetensors need no pickle",
            )
    for file, content in ckpt.torch_bins.items():
        if not content.is_listed:
            raise Skip(f"{file} could not be followed to its end: {content.unreadable_reason}")
