"""The adapter's matrices are of another rank than its config says.

## What it checks
`lora_A` has `r` rows and `lora_B` has `r` columns, as `adapter_config.json` gives `r` (or `rank_pattern` for a
module).

## Why it matters
PEFT stops with a size mismatch. vLLM and SGLang scale by `lora_alpha / r`, so with a wrong `r` the update has another
strength than in training.

## How to fix
Take the config that was trained with.

## When it can be wrong
Where `rank_pattern` holds a regular expression, the rank of modules that no plain name matches before it is not
judged, since patterns from a checkpoint are not run. With `target_parameters` any multiple of the rank passes,
because experts are stored together. A wrong `lora_alpha` or `alpha_pattern` changes the strength as much and has no
shape to be seen by. Tools that fuse q, k and v of an adapter store three times the rank: `--ignore ADP004` where
their own loader reads it.

## Seen in
No public report: configs copied between runs.
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.adapter import rank_of
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count, few

HALF = re.compile(r"\.lora_([AB])(\.\w+)?\.weight$")


@rule(
    "ADP004",
    "adapter-rank",
    severity="error",
    when=lambda ckpt: ckpt.is_adapter and ckpt.adapter is not None and ckpt.adapter.integer("r") is not None,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.adapter is not None
    odd: dict[tuple[int, int], list[str]] = {}
    for name, tensor in ckpt.tensors.items():
        match = HALF.search(name)
        if match is None or len(tensor.shape) != 2 or 0 in tensor.shape:
            continue
        rank, found = rank_of(ckpt.adapter, name[: match.start()]), tensor.shape[0 if match[1] == "A" else 1]
        several = (
            bool(ckpt.adapter.value.get("target_parameters")) and rank and found % rank == 0
        )  # a rank for each expert
        if rank is not None and found != rank and not several:
            odd.setdefault((found, rank), []).append(name)
    for (found, rank), names in odd.items():
        yield Problem(
            f"{count(len(names), 'tensor is', 'tensors are')} of rank {found}, but adapter_config.json says {rank}: {few(names)}",
            file=ckpt.holders[names[0]],
            key=names[0],
            hint="take the config that was trained with",
        )
