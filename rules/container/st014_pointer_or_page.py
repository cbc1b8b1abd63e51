"""A file is a git-LFS pointer, a web page or a server's error message instead of its content.

## What it checks
No file of weights, tokenizer, index, config or code begins with `version https://git-lfs`, like HTML or XML, or with an error
response of the Hub or S3: `Entry not found`, `Invalid username or password`, `Access to model … is restricted`, `<Error>`.

## Why it matters
A clone without git-LFS leaves a text of three lines in place of each large file. `wget`, `curl -L` and browsers save whatever
the server sends: a login page, the page that displays the file, a refusal. safetensors then reports `header too large`, and a
JSON parser complains about line 1; neither names the cause.

## How to fix
Install git-LFS and run `git lfs pull` in the clone. Or use `hf download`, with a token if the model is gated.

## When it can be wrong
`git lfs pull --include` leaves the pointers of all other files. `pytorch_model.bin` and `adapter_model.bin` are excluded if the
same model exists in safetensors; for other files that your loader does not need, use `--ignore ST014`, and likewise for HTML on
purpose: a license in `.txt`, a template in `.jinja` that begins with `<html`. On the Hub only files below 1 KB and the shards
are checked, which is enough for a pointer. The rule does not recognize other responses, such as JSON with an `error`; ST001
reports these in a shard.

## Seen in
huggingface/transformers#27923, microsoft/OmniParser#34, codefuse-ai/MFTCoder#20, huggingface/diffusers#6713 (a page)
"""

import re
from collections.abc import Iterator

from msgspec import structs

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint

HINTS = {
    "lfs-pointer": "run git lfs pull in the clone, or fetch the file with hf download",
    "html-page": "fetch the file with hf download, with a token where the model is gated",
}
"""Kind of defect → what to do."""
TWIN = re.compile(r"(pytorch|adapter)_model(-[0-9]+-of-[0-9]+)?[.]bin")
"""Weights that transformers, PEFT, vLLM and SGLang open only if there are none in safetensors."""


@rule("ST014", "pointer-or-page", severity="error")
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    spare = {name for name in ckpt.files if TWIN.fullmatch(name)} if _has_weights(ckpt) else set()
    for kind, hint in HINTS.items():
        for problem in ckpt.defects(kind, files=ckpt.files.keys() - spare):
            yield structs.replace(problem, hint=hint)


def _has_weights(ckpt: Checkpoint) -> bool:
    return bool(ckpt.model_files) and all(
        name in ckpt.shards and ckpt.shards[name].readable for name in ckpt.model_files
    )
