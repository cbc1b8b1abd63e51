"""The tensors have the names of another layout or architecture.

## What it checks
For the architectures of transformers: at least one module inside the layers has a name that transformers looks for, and at least
one stored name at all is one of these. The known names are the names that transformers itself saves, with each option of the config
on and off, and those that it renames. A classifier or a bare model is held against the language model of its `model_type`: it may
have other names in front of the layers, but no others within them. In any architecture, all layers with experts use one layout: a
tensor for each expert, or one for all.

If no name fits, this is the only finding on names: that every parameter is missing and every tensor left over is a consequence.
Where one or two words stand in front of all names, and without them nearly every parameter has its tensor, it names these words.

## Why it matters
transformers initializes the whole model with random numbers and lists the omitted tensors in a warning. In SGLang many models
silently drop the tensors and answer /health with 200. It happens when a checkpoint in a trainer's or another library's layout
gets a `config.json`, and where a wrapper leaves a prefix before every name. A loader for one layout of experts stops, or leaves the
layers of the other one uninitialised.

## How to fix
Convert the checkpoint to the Hugging Face layout of this architecture, or correct `architectures`.

## When it can be wrong
With `--dry-load transformers` the loader itself answers, and this rule is skipped. A loader with its own code (`auto_map`) may know
the names; then they are not checked. One that reads both layouts of experts: `--ignore CFG016`. Experts are known to be fused by
the names `gate_up_proj` and `down_proj` and by three dimensions.

## Seen in
sgl-project/sglang#38616, sgl-project/sglang#38618 (GLM-5.3, 97 % of the bytes dropped), NVIDIA-NeMo/Automodel#2595 (mixed experts)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.expected.find_faults import iter_problems


@rule("CFG016", "foreign-layout", severity="error", when=lambda ckpt: bool(ckpt.tensors) and not ckpt.is_partial)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    yield from iter_problems(ckpt, "layout")
