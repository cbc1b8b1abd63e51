"""The index and the headers of the shards do not list the same tensors in the same files.

## What it checks
- Every tensor in the index's `weight_map` is in the header of some shard. Missing and unreadable shards are left out: IDX001
  and ST001 report those.
- Every tensor in the header of an indexed shard has an entry in `weight_map`.
- For every tensor that both name, they name the same file.

## Why it matters
transformers initializes a tensor that is nowhere with random numbers, or stops with a KeyError; Hub maintainers say that
consistency "must be checked downstream". Of a tensor that the index does not list, consumers disagree: vLLM and SGLang read
every tensor of every shard, while loaders and exporters that walk the index (Model-Optimizer, transformers 4, MLX) silently
omit it; layers of multi-token prediction get lost this way. Loaders that open the named shard and ask for a tensor that lies in
another one (transformers, Megatron-Bridge) stop with a KeyError.

## How to fix
`ckptcheck scan --fix` writes the index again from the headers. If a tensor is nowhere, find the file that was left behind
(often `mtp` or adapter weights) and upload it.

## When it can be wrong
- An entry may belong to a tensor that no loader needs: a rotary buffer (`inv_freq`) of an older version, or a tied head that is
  no longer stored. Then write the index again. CFG003 reports tensors that are neither in the index nor in a
  shard.
- If only vLLM or SGLang loads the model, every tensor of a named shard is loaded whatever the index says: use `--ignore
  IDX002`. SET004 reports files that the index does not name, IDX005 a tensor with two copies.

## Seen in
huggingface/huggingface_hub#4725, huggingface/huggingface_hub#4391, NVIDIA/Model-Optimizer#2427, osaurus-ai/vmlx-swift#388,
Blaizzy/mlx-vlm#1827
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import IndexedCheckpoint
from ckptcheck.text.formatting import count, join_truncated

FIX = "ckptcheck scan --fix writes the index again from the headers"


@rule("IDX002", "disagreeing-index", severity="error", on="index", when=lambda ckpt: ckpt.index_decides)
def check(ckpt: IndexedCheckpoint) -> Iterator[Problem]:
    if ckpt.index_agrees:
        return
    yield from _find_absent(ckpt)
    yield from _find_unlisted(ckpt)
    yield from _find_misplaced(ckpt)


def _find_absent(ckpt: IndexedCheckpoint) -> Iterator[Problem]:
    absent: dict[str, list[str]] = {}
    for tensor in ckpt.index.weight_map.keys() - ckpt.tensor_to_file.keys():
        shard = ckpt.index.weight_map[tensor]
        if shard in ckpt.shards and ckpt.shards[shard].readable:
            absent.setdefault(shard, []).append(tensor)
    for shard, tensors in sorted(absent.items()):
        yield Problem(
            f"the index places {count(len(tensors), 'tensor')} in {shard} that no shard holds: {join_truncated(tensors)}",
            file=ckpt.index.file,
            key=f"weight_map.{min(tensors)}",
            hint="find the file they were left behind in, or export again; remove the entries if they were dropped on purpose",
        )


def _find_unlisted(ckpt: IndexedCheckpoint) -> Iterator[Problem]:
    unlisted = sorted(ckpt.tensor_to_file.keys() - ckpt.index.weight_map.keys())
    if not unlisted:
        return
    shards = sorted({ckpt.tensor_to_file[tensor] for tensor in unlisted})
    first = next(tensor for tensor in unlisted if ckpt.tensor_to_file[tensor] == shards[0])
    where, one = (
        "this shard" if len(shards) == 1 else f"this and {count(len(shards) - 1, 'more shard')}",
        len(unlisted) == 1,
    )
    yield Problem(
        f"{count(len(unlisted), 'tensor')} in {where} {'is' if one else 'are'} not in the index, "
        f"so loaders that follow the index omit {'it' if one else 'them'}: {join_truncated(unlisted)}",
        file=shards[0],
        key=first,
        hint=FIX,
    )


def _find_misplaced(ckpt: IndexedCheckpoint) -> Iterator[Problem]:
    misplaced: dict[tuple[str, str], list[str]] = {}
    for tensor, named in ckpt.index.weight_map.items():
        shard = ckpt.shards.get(named)
        holder = ckpt.tensor_to_file.get(tensor, named)
        if holder != named and shard is not None and shard.readable and tensor not in shard.tensors:
            misplaced.setdefault((named, holder), []).append(tensor)
    for (named, holder), tensors in sorted(misplaced.items()):
        yield Problem(
            f"the index places {join_truncated(tensors)} in {named}, but {holder} holds {'it' if len(tensors) == 1 else 'them'}",
            file=ckpt.index.file,
            key=f"weight_map.{min(tensors)}",
            hint=FIX,
        )
