"""A git-LFS pointer stands in the place of a file.

## What it checks
No file begins with `version https://git-lfs`. Weights, tokenizer, index, configs and code are looked at.

## Why it matters
The repository was cloned without git-LFS, so the file is a text of three lines. safetensors refuses it (`header too
large`), sentencepiece and the JSON parsers refuse a tokenizer or an index like that, each with an error that does not
name the cause.

## How to fix
Install git-LFS and run `git lfs pull` in the clone, or fetch the files with `hf download`.

## Seen in
huggingface/transformers#27923, microsoft/OmniParser#34, codefuse-ai/MFTCoder#20, turboderp/exllama#242
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule("ST014", "lfs-pointer", severity="error")
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("lfs-pointer"):
        yield replace(problem, hint="run git lfs pull in the clone, or fetch the file with hf download")
