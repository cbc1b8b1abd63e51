"""The same tensor is in two files that are loaded together.

## What it checks
No tensor name is in the headers of two files of the model. These are the files that the index names; without an index, all
`*.safetensors` files of the folder, because vLLM and SGLang then read them all.

## Why it matters
vLLM and SGLang read every tensor of every file: the last one wins, or a shape assertion stops the load; fastsafetensors
crashes. transformers loads the one that the index names. So two engines serve different weights.

## How to fix
Find out which copy is right, and write the other shard without it. Delete a shard that remains from an earlier save.

## When it can be wrong
Two copies with the same bytes affect only fastsafetensors; the headers do not say whether they are equal. A pipeline of
several stages may store a tied embedding twice. The same model with another dtype, which transformers and diffusers load by its
`variant` (`model.fp16.safetensors`), is left out: SET004 warns that vLLM and SGLang read both.

## Seen in
verl-project/verl#6259, eugr/spark-vllm-docker#134, syv-ai/qwen38-27b-rtx3090#123, mflux-community/mflux#603
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.shard_set import is_variant_of
from ckptcheck.text.formatting import count, join_truncated


@rule("IDX005", "duplicate-tensor", severity="error", when=lambda ckpt: len(ckpt.globbed_files) > 1)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if ckpt.index_decides and len(ckpt.tensors) == sum(len(ckpt.shards[name].tensors) for name in ckpt.globbed_files):
        return
    first: dict[str, str] = {}
    for name in ckpt.globbed_files:
        tensors = ckpt.shards[name].tensors
        twice: dict[str, list[str]] = {}
        for tensor in first.keys() & tensors.keys():
            twice.setdefault(first[tensor], []).append(tensor)
        for other, names in sorted(twice.items()):
            if is_variant_of(name, other) or is_variant_of(other, name):
                continue  # SET004 warns of what engines make of it
            yield Problem(
                f"{count(len(names), 'tensor')} of {other} {'is' if len(names) == 1 else 'are'} in this file too, "
                f"and engines that read every file keep the one they read last: {join_truncated(names)}",
                file=name,
                key=min(names),
                hint="delete the file that remains from an earlier save, or write this shard without them",
            )
        first = dict.fromkeys(tensors, name) | first
