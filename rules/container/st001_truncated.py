"""A safetensors file ends before its header or its data does.

## What it checks
The file is as long as its header says: the 8 bytes that give the header's length, the header, and the data up to the
end of the last tensor. A download that was broken off, a full disk and a copy that is still running all leave it
shorter.

## Why it matters
safetensors refuses the file (`incomplete metadata, file not fully covered`, before 0.6 `MetadataIncompleteBuffer`),
and so do transformers, vLLM and SGLang, often after minutes of loading the other shards. Readers that do not look at
the length get whatever is in memory behind the end.

## How to fix
Fetch or copy the file again, and compare its size or its SHA-256 with the original's.

## When it can be wrong
A file that is still being downloaded or written is shorter for a while; scan it again when nothing writes to it. A
file that a downloader made in its full length, and of which only the beginning arrived, is long enough, so this rule
is quiet: VAL004 and VAL005 see the zeros. So is a file whose header was written anew after the cut.

## Seen in
lyogavin/airllm#137, hiyouga/LlamaFactory#2922, PaddlePaddle/PaddleFormers#2435, Comfy-Org/ComfyUI#6744
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "ST001",
    "truncated",
    severity="error",
    when=lambda ckpt: ckpt.has_shards,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("truncated"):
        yield replace(problem, hint="fetch or copy the file again")
