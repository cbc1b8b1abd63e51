"""The token embedding is missing.

## What it checks
A language model with layers holds a table of token embeddings (`embed_tokens`, `wte`, `word_embeddings`, …), or an
output head that is tied to it.

## Why it matters
transformers starts it from random numbers, or leaves it without memory on the meta device. Conversions that drop
shared tensors lose it when they keep the wrong one of the two names.

## How to fix
Convert again from a checkpoint that has it.

## When it can be wrong
A model that is fed with vectors and not with tokens (speech, actions, protein structure) has no token table, and one
with code of its own may call it by a name that nobody else uses. `--ignore CFG009` there. It goes by names: any table
beside the layers that is called `embed`, `shared` or the like makes it quiet, whatever it is a table of.

## Seen in
huggingface/transformers#34759 (MobileLLM-125M), huggingface/transformers#43159 (opt-125m)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.anatomy import EMBEDDING
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.layout import ASIDE
from ckptcheck.checkpoint.packing import PACKED


@rule(
    "CFG009",
    "missing-embedding",
    severity="error",
    when=lambda ckpt: (
        bool(ckpt.anatomy.layers) and ckpt.config is not None and bool(ckpt.config.architecture) and not ckpt.is_partial
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    anatomy = ckpt.anatomy
    if anatomy.embedding is not None or (anatomy.tied and anatomy.head is not None):
        return
    # Packed by a quantization it is no matrix; with several codebooks (MusicGen) there is a table for each.
    if anatomy.is_draft:
        return
    named = [
        *(PACKED.sub("weight", name) for name in anatomy.layout.outside),
        *anatomy.layout.outside,
        *(f"{prefix}.weight" for prefix in anatomy.layout.stacks),
    ]
    if any(EMBEDDING.search(name) and not ASIDE.search(name) for name in named):
        return
    assert anatomy.stack is not None
    yield Problem(
        f"there are {len(anatomy.layers)} layers in {anatomy.stack.prefix}, but no token embedding; "
        "transformers starts it from random numbers",
        file=ckpt.holder(anatomy.stack.name(min(anatomy.layers))),
        hint="convert again from a checkpoint that has it",
    )
