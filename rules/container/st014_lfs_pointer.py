"""A file is a git-LFS pointer instead of its content.

## What it checks
No file begins with `version https://git-lfs`. The rule checks weights, tokenizer, index, configs and code.

## Why it matters
The repository was cloned without git-LFS, so the file is a text of three lines. safetensors refuses such a shard (`header too
large`); sentencepiece and the JSON parsers refuse such a tokenizer or index. None of their errors names the cause.

## How to fix
Install git-LFS and run `git lfs pull` in the clone, or fetch the files with `hf download`.

## When it can be wrong
`git lfs pull --include` leaves the pointers of all other files. `pytorch_model.bin` and `adapter_model.bin` are excluded if
the same model exists in safetensors; for other files that your loader does not need, use `--ignore ST014`. On the Hub only
files below 1 KB and the shards are checked, which is enough for a pointer.

## Seen in
huggingface/transformers#27923, microsoft/OmniParser#34, codefuse-ai/MFTCoder#20, turboderp/exllama#242
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint

TWIN = re.compile(r"(pytorch|adapter)_model(-[0-9]+-of-[0-9]+)?[.]bin")
"""Weights that transformers, PEFT, vLLM and SGLang open only where there are none in safetensors."""


@rule("ST014", "lfs-pointer", severity="error")
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    spare = {name for name in ckpt.files if TWIN.fullmatch(name)} if _has_weights(ckpt) else set()
    for problem in ckpt.defects("lfs-pointer", files=ckpt.files.keys() - spare):
        yield replace(problem, hint="run git lfs pull in the clone, or fetch the file with hf download")


def _has_weights(ckpt: Checkpoint) -> bool:
    return bool(ckpt.model_files) and all(
        name in ckpt.shards and ckpt.shards[name].readable for name in ckpt.model_files
    )
