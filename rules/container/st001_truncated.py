"""A safetensors file ends before its header or its data does.

## What it checks
The file is as long as its header says: the 8 bytes that give the header's length, the header, and the data up to the end of
the last tensor. An interrupted download, a full disk or an unfinished copy leaves it shorter.

## Why it matters
safetensors refuses the file (`incomplete metadata, file not fully covered`, before 0.6 `MetadataIncompleteBuffer`), and so do
transformers, vLLM and SGLang, often after minutes of loading the other shards. Readers that do not check the length read
whatever memory follows the end.

## How to fix
Fetch or copy the file again, and compare its size or SHA-256 with the original.

## When it can be wrong
A file that is still being downloaded or written is shorter for a while: scan it again when nothing writes to it. If a
downloader reserved the full length and only the beginning arrived, the file is long enough and this rule is quiet; VAL004 and
VAL005 find the zeros. It is also quiet if the header was rewritten after the truncation.

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
