"""The data of a safetensors file, or a tensor in it, is misaligned.

## What it checks
The data begin at a multiple of 8 bytes, and every tensor at a multiple of its element size, counted from the beginning of the
file. safetensors pads the header with spaces and writes the widest dtypes first, so its files are aligned.

## Why it matters
The format allows misaligned data, and safetensors reads it. Readers that map the file into memory cannot use such tensors in
place: vMLX copied 59 GB of one model into memory, ComfyUI and some accelerators stopped, and llama.cpp's converter failed for
a while because it assumed alignment.

## How to fix
Write the file again with safetensors' `save_file`.

## When it can be wrong
Loaders that copy every tensor, to a GPU for example, are not affected: use `--ignore ST019` if only they read the file. The
rule requires the alignment of the tensor's own dtype; a reader that needs 64 bytes or a page may still be unable to map it.
If the layout has another defect, single tensors are not checked.

## Seen in
osaurus-ai/vmlx-swift#377, ggml-org/llama.cpp#18291, Comfy-Org/ComfyUI#12266, huggingface/safetensors#607
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "ST019",
    "misaligned-data",
    severity="warning",
    when=lambda ckpt: ckpt.has_shards,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("misaligned-data"):
        yield replace(problem, hint="write the file again with safetensors' save_file")
    ckpt.require_headers()
