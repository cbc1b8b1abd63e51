"""transformers refuses it, starts a parameter from random numbers, or leaves a stored tensor out.

## What it checks
With `--dry-load transformers`: the installed transformers builds the model of config.json on the meta device and matches every
stored tensor with its parameters, by its own renamings, conversions and quantizers. It reads names, dtypes and shapes, and no
value, so a model of any size takes seconds and no memory. An error: it refuses the checkpoint, a stored shape is another than
its own, or nothing stored fills a parameter. A warning: it has no place for a stored tensor.

## Why it matters
This is the answer of the loader itself, for every architecture that it knows: newer ones than ckptcheck has learned as well,
and sizes that only its code can tell. transformers fills a missing parameter with random numbers and lists it in a long
warning.

## How to fix
Export again under the names and shapes that the message asks for, or correct config.json.

## When it can be wrong
The answer is that of one version: a newer transformers may know what this one refuses. A base model that is to be trained for
another task has no head yet: use `--ignore DRY001`. Some quantizers need a package or a GPU; then the rule is skipped, with the
reason, as it is for models that bring their own code, which is not run. Values are not seen: a matrix of zeros loads like any
other.

## Seen in
huggingface/transformers#6193, OpenGVLab/InternVL#666
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.dry_load_problems import find_load_problems, has_dry_loader


@rule("DRY001", "load-by-transformers", severity="error", when=lambda ckpt: has_dry_loader(ckpt, "transformers"))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    yield from find_load_problems(ckpt, "transformers")
