"""The token embedding is missing.

## What it checks
A language model with layers holds a table of token embeddings (`embed_tokens`, `wte`, `word_embeddings`, …), or an output
head that is tied to it.

## Why it matters
transformers initializes it with random numbers, or leaves it on the meta device. Conversions that drop shared tensors lose it
if they keep the wrong one of the two names.

## How to fix
Convert again from a checkpoint that has it.

## When it can be wrong
The rule leaves out models without a vocabulary (encoders of images, of speech). A model that has one, and whose input is
vectors instead of tokens (actions, protein structure), has no token table, and a model with its own code may use another name.
Use `--ignore CFG009` in both cases. The rule goes by names: any table beside the layers with a name like `embed` or `shared`
silences it, whatever it holds.

## Seen in
huggingface/transformers#34759 (MobileLLM-125M), huggingface/transformers#43159 (opt-125m)
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.components import EMBEDDING
from ckptcheck.checkpoint.layout import ASIDE
from ckptcheck.checkpoint.packing import PACKED
from ckptcheck.checkpoint.views import LayeredCheckpoint

PARAMETRIZED = re.compile(r"\.parametrizations\.weight\.original$")
"""What torch makes of a weight to which something is added, as the adapters in jina-embeddings-v3."""


@rule(
    "CFG009",
    "missing-embedding",
    severity="error",
    on="layers",
    when=lambda ckpt: (
        ckpt.config is not None
        and bool(ckpt.config.architecture)
        and ckpt.components.is_language_model
        and not ckpt.is_partial
    ),
)
def check(ckpt: LayeredCheckpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    anatomy = ckpt.components
    if anatomy.embedding is not None or (anatomy.is_tied and anatomy.lm_head is not None):
        return
    # Packed by a quantization it is no matrix; with several codebooks (MusicGen) there is a table for each.
    if anatomy.is_draft or anatomy.is_sequential:
        return
    named = [
        *(PARAMETRIZED.sub(".weight", PACKED.sub("weight", name)) for name in anatomy.layout.outside),
        *anatomy.layout.outside,
        *(f"{prefix}.weight" for prefix in anatomy.layout.stacks),
    ]
    if any("char_embeddings." in name for name in named):  # CANINE hashes characters into several tables
        return
    if any(EMBEDDING.search(name) and not ASIDE.search(name) for name in named):
        return
    if "embed_tokens.embed_audio_tokens.weight" in named:  # all that the backbone of CSM reads is tokens of sound
        return
    yield Problem(
        f"there are {len(anatomy.layers)} layers in {anatomy.stack.prefix}, but no token embedding; "
        "transformers initializes it with random numbers",
        file=ckpt.file_of(anatomy.stack.full_name(min(anatomy.layers))),
        hint="convert again from a checkpoint that has it",
    )
