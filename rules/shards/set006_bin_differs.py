"""The PyTorch file beside the safetensors holds tensors that those lack.

## What it checks
The tensor names of `pytorch_model.bin` (or of its index) are all among the safetensors' names. The pickle is never
executed: its names are read by a reader that knows tensors and nothing else. Left out: buffers that newer versions do
not store, and an output head that is tied.

## Why it matters
transformers prefers safetensors and starts what they lack from random numbers, while whoever prefers the .bin loads
it. Conversions that drop shared tensors produce exactly this.

## How to fix
Convert again from the .bin, or delete it if it is older.

## Seen in
huggingface/transformers#34759 (MobileLLM-125M), huggingface/transformers#43159 (opt-125m)
"""

import re
from collections.abc import Iterator
from pathlib import Path

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.document import parse_object
from ckptcheck.checkpoint.pickled import UnreadablePickle, tensor_shapes
from ckptcheck.phrase import count, few

SINGLE, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
BUFFERS = re.compile(r"(inv_freq|masked_bias|attn\.bias|attention\.bias|position_ids|num_batches_tracked)$")


@rule(
    "SET006",
    "bin-differs",
    severity="warning",
    when=lambda ckpt: bool(ckpt.shards) and not ckpt.single and (SINGLE in ckpt.files or INDEX in ckpt.files),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    file = INDEX if INDEX in ckpt.files else SINGLE
    missing = {name for name in _names(ckpt, file) - ckpt.tensors.keys() if not BUFFERS.search(name)}
    if ckpt.anatomy.tied and ckpt.anatomy.embedding:
        missing -= {"lm_head.weight", "embed_out.weight"}
    if missing:
        yield Problem(
            f"{count(len(missing), 'tensor')} of this file {'is' if len(missing) == 1 else 'are'} in no safetensors file, "
            f"which most loaders prefer: {few(missing)}",
            file=file,
            key=min(missing),
            hint="convert again from the .bin, or delete it if it is older",
        )


def _names(ckpt: Checkpoint, file: str) -> set[str]:
    if ckpt.files[file].leaves is not None:
        raise Skip(f"{file} is a link out of the checkpoint")
    if file == INDEX:
        value, _ = parse_object(ckpt.source.read(file, 0, ckpt.files[file].size))
        names = value.get("weight_map") if value else None
        if not isinstance(names, dict):
            raise Skip(f"{file} is not an index")
        return set(names)
    if ckpt.source.local is None:
        raise Skip(f"{file} is not fetched from the Hub")
    try:
        with (Path(ckpt.source.local) / file).open("rb") as opened:
            return set(tensor_shapes(opened))
    except UnreadablePickle as error:
        raise Skip(f"the names in {file} could not be read: {error}") from error
