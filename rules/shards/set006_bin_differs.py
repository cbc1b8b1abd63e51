"""The PyTorch file beside the safetensors holds tensors that they lack.

## What it checks
The tensor names of `pytorch_model.bin` (or of its index) are all among the safetensors' names. ckptcheck never executes the
pickle; its reader only understands tensors. Excluded are buffers that newer versions do not store, a tied output head, and
the copies of a shared embedding that encoder-decoder models had.

## Why it matters
transformers prefers safetensors and initializes the tensors they lack with random numbers, while a program that prefers the
.bin loads them. Conversions that drop shared tensors produce this.

## How to fix
Convert again from the .bin, or delete it if it is older.

## When it can be wrong
A model class that ties further tensors has names in the .bin that the safetensors do not need. The head, T5's and BART's
copies of the shared embedding and BERT's decoder are known; for others check whether transformers ties them
(`_tied_weights_keys`), then use `--ignore SET006`. The rule compares names, not values: a .bin of another step with the same
names passes. A .bin that needs other classes, or is on the Hub without an index, is skipped.

## Seen in
huggingface/transformers#34759 (MobileLLM-125M), huggingface/transformers#43159 (opt-125m)
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.index import read_index
from ckptcheck.text.formatting import count, join_truncated

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
    when=lambda ckpt: bool(ckpt.shards) and not ckpt.is_single_shard and (SINGLE in ckpt.files or INDEX in ckpt.files),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    file = INDEX if INDEX in ckpt.files else SINGLE
    missing = {name for name in _names(ckpt, file) - ckpt.tensors.keys() if not BUFFERS.search(name)}
    if ckpt.components.is_tied is not False and ckpt.components.embedding:  # transformers ties by default
        missing = {name for name in missing if not HEAD.fullmatch(name)}
    if ckpt.components.embedding and SHARED.fullmatch(ckpt.components.embedding):
        missing = {name for name in missing if not COPIES.fullmatch(name)}
    if missing:
        yield Problem(
            f"{count(len(missing), 'tensor')} of this file {'is' if len(missing) == 1 else 'are'} in no safetensors file, "
            f"which most loaders prefer: {join_truncated(missing)}",
            file=file,
            key=min(missing),
            hint="convert again from the .bin, or delete it if it is older",
        )


def _names(ckpt: Checkpoint, file: str) -> set[str]:
    if ckpt.files[file].outside_link is not None:
        raise Skip(f"{file} is a link out of the checkpoint")
    if file == INDEX:
        index = read_index(ckpt.source, file)
        if not index.readable:
            raise Skip(f"{file} is not an index")
        return set(index.weight_map)
    if not ckpt.source.allows_sampling:
        raise Skip(f"{file} is not fetched from the Hub")
    content = ckpt.torch_bins.get(file)
    reason = "it is no torch.save file" if content is None else content.unreadable_reason
    if content is None or reason is not None:
        raise Skip(f"the names in {file} could not be read: {reason}")
    if content.foreign_globals:
        raise Skip(f"{file} holds more than tensors: it asks for {content.foreign_globals[0]}")
    return set(content.shapes)
