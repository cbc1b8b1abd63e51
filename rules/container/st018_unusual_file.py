"""A safetensors file is legal, but holds no tensor, or its data is misaligned.

## What it checks
- Every header lists at least one tensor. An adapter without one is ADP003's.
- The data begins at a multiple of 8 bytes, and every tensor at a multiple of its element size, counted from the beginning of
  the file. safetensors pads the header with spaces and writes the widest dtypes first, so its files are aligned.

## Why it matters
Loaders silently skip a file without tensors: if it should hold weights, these stay random. A save that gathered nothing leaves
such a file, on a rank that owns no part of the model or from an empty state dict. Readers that map a file into memory cannot
use misaligned tensors in place: vMLX copied 59 GB of one model, ComfyUI and some accelerators stopped, and llama.cpp's
converter failed for a while.

## How to fix
Remove an empty file, or check the code that saved it. Write a misaligned one again with safetensors' `save_file`.

## When it can be wrong
A shard may be empty by design, for example on ranks that own nothing; if weights are missing, CFG003 or IDX002 names
them. Loaders that copy every tensor, to a GPU for example, read misaligned data as well. The rule requires the alignment of the
tensor's own dtype; a reader that needs 64 bytes or a page may still be unable to map it.

## Seen in
huggingface/safetensors#466, huggingface/safetensors#601, osaurus-ai/vmlx-swift#377, ggml-org/llama.cpp#18291,
Comfy-Org/ComfyUI#12266, huggingface/safetensors#607
"""

from collections.abc import Iterator

from msgspec import structs

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint

HINTS = {
    "no-tensors": "remove the file, or save it again if tensors should be in it",
    "misaligned-data": "write the file again with safetensors' save_file",
}
"""Kind of defect → what to do."""


@rule("ST018", "unusual-file", severity="warning", when=lambda ckpt: ckpt.has_shards)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for kind, hint in HINTS.items():
        for problem in ckpt.defects(kind) if kind != "no-tensors" or not ckpt.is_adapter else ():
            yield structs.replace(problem, hint=hint)
    ckpt.require_headers()
