"""The data of a safetensors file, or a tensor in it, begins at an odd place.

## What it checks
The data begin at a multiple of 8 bytes, and every tensor at a multiple of the size of its own elements, counted from
the beginning of the file. safetensors pads the header with spaces and puts the widest dtypes first, so the files that
it writes are like that.

## Why it matters
The format does not forbid it, and safetensors reads it. Readers that map the file into memory cannot use such tensors
in place: vMLX copied 59 GB of one model into memory for it, ComfyUI and some accelerators stopped on them, and
llama.cpp's converter broke on them for a while because it took the alignment for granted.

## How to fix
Write the file anew with safetensors' `save_file`.

## When it can be wrong
Loaders that copy every tensor, to a GPU for example, lose nothing by it: `--ignore ST019` where only they read the
file. A tensor's place is measured by its own dtype, so one that a reader wants on 64 bytes or on a page may still be
off for that reader. Where the layout has another defect, single tensors are not examined for this one.

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
        yield replace(problem, hint="write the file anew with safetensors' save_file")
    ckpt.require_headers()
