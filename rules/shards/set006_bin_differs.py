"""The PyTorch file beside the safetensors holds tensors that those lack.

## What it checks
The tensor names of `pytorch_model.bin` (or of its index) are all among the safetensors' names. The pickle is never
executed: its names are read by a reader that knows tensors and nothing else. Left out: buffers that newer versions do
not store, an output head that is tied, and the copies of a shared embedding that encoder-decoder models had.

## Why it matters
transformers prefers safetensors and starts what they lack from random numbers, while whoever prefers the .bin loads
it. Conversions that drop shared tensors produce exactly this.

## How to fix
Convert again from the .bin, or delete it if it is older.

## When it can be wrong
A class that ties further tensors has names in the .bin which the safetensors need not have. The head, T5's and BART's
copies of the shared embedding and BERT's decoder are known; for others see whether transformers ties them
(`_tied_weights_keys`), then `--ignore SET006`. Names are compared, not values: a .bin of another step with the same
names passes. One that asks for further classes, or lies on the Hub without an index, is skipped.

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
HEAD = re.compile(r"(lm_head|embed_out|(cls[.]predictions|lm_head)[.]decoder)[.](weight|bias)")
"""Output heads of decoders, BERT and RoBERTa, which classes that tie them do not store."""
SHARED = re.compile(r"(model[.])?shared[.]weight")
COPIES = re.compile(r"(model[.])?(encoder|decoder)[.]embed_tokens[.]weight")
"""What T5 and BART call the shared embedding within encoder and decoder."""


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
    if ckpt.anatomy.tied is not False and ckpt.anatomy.embedding:  # transformers ties where nothing says otherwise
        missing = {name for name in missing if not HEAD.fullmatch(name)}
    if ckpt.anatomy.embedding and SHARED.fullmatch(ckpt.anatomy.embedding):
        missing = {name for name in missing if not COPIES.fullmatch(name)}
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
