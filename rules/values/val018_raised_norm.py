"""Norms of the layers have no weights below one, as if one had been added to them.

## What it checks
In an architecture that multiplies by the weight itself: in three quarters of the norms of a kind (the same norm in all layers), and
at least six, no more than 1 % of the weights are below one, and the norms are trained.

It leaves out what VAL017 leaves out. The rule does not look for this on the Hub.

Measured: in every norm of the layers of SmolLM2-135M and of all-MiniLM-L6-v2 at least 98 % of the weights are below one; with one
added, at most 0.8 % of a norm's, except for the first norm of SmolLM2.

## Why it matters
A converter that takes the norms of a family for Gemma's, which multiplies by 1 + weight, adds one to weights that are complete
already. The gains of all layers are then several times too large in transformers and vLLM, and nothing stops.

## How to fix
Subtract one from the norms, or convert again with the convention of the target. `ckptcheck diff` with the original shows which
norms changed.

## When it can be wrong
- A model whose gains all grew beyond one in training, in every channel of most layers. None was found, but few were measured.
- A model that was converted from Gemma to the architecture of Llama, where adding one is right, and whose gains are all above one.
- It misses a norm to which one was added alone.
- `--ignore VAL018`, or a reason under `[ignore]`, silences it.

## Seen in
ggml-org/llama.cpp (`convert_hf_to_gguf.py` adds one to the norms of Gemma, by the names of the tensors)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import join_truncated
from ckptcheck.values.detectors.norms import find_raised_norms


@rule("VAL018", "raised-norm", severity="warning", on="values", when=lambda ckpt: bool(ckpt.components.layers))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if not ckpt.can_sample:
        raise Skip("norms are read again only on disk, and in an object store with --values")
    if names := find_raised_norms(ckpt):
        yield Problem(
            f"{len(names)} norms of the layers have no weights below one, as if one had been added: {join_truncated(names)}",
            file=ckpt.tensor_to_file[names[0]],
            key=names[0],
            hint="compare them with the original's; subtract one if this architecture multiplies by the weight itself",
        )
    ckpt.require_values()
