"""The same tensor stands in two files that are loaded together.

## What it checks
No tensor name stands in the headers of two files that make up the model. Where an index chooses the files, those are
the ones it names; without an index they are all `*.safetensors` files of the folder, since vLLM and SGLang then read
them all.

## Why it matters
vLLM and SGLang read every tensor of every file: the last one wins, or a shape assertion stops the load;
fastsafetensors crashes. transformers takes the one that the index names. So two engines serve different weights.

## How to fix
Find out which copy is meant and write the other shard without it. A leftover of an earlier save can be deleted.

## When it can be wrong
Two copies with the same bytes hurt nobody but fastsafetensors; the headers do not tell whether they are the same. A
pipeline of several stages may store a tied embedding twice that way. Without an index, a second model in the folder
that transformers takes by its `variant` (`model.fp16.safetensors`) fires it too, and vLLM would in fact read both.
Give it a folder of its own, or `--ignore IDX005`.

## Seen in
verl-project/verl#6259, eugr/spark-vllm-docker#134, syv-ai/qwen38-27b-rtx3090#123, mflux-community/mflux#603
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count, few


@rule("IDX005", "duplicate-tensor", severity="error", when=lambda ckpt: len(ckpt.globbed) > 1)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if ckpt.index_decides and len(ckpt.holders) == sum(len(ckpt.shards[name].tensors) for name in ckpt.globbed):
        return
    first: dict[str, str] = {}
    for name in ckpt.globbed:
        tensors = ckpt.shards[name].tensors
        twice: dict[str, list[str]] = {}
        for tensor in first.keys() & tensors.keys():
            twice.setdefault(first[tensor], []).append(tensor)
        for other, names in sorted(twice.items()):
            yield Problem(
                f"{count(len(names), 'tensor')} of {other} {'stands' if len(names) == 1 else 'stand'} here again, "
                f"and engines that read every file take whichever comes last: {few(names)}",
                file=name,
                key=min(names),
                hint="delete the file that is left over, or write this shard without them",
            )
        first = dict.fromkeys(tensors, name) | first
