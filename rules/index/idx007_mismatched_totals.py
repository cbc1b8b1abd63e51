"""The index's total_size or total_parameters is not what the shards hold, or absent.

## What it checks
- `metadata.total_size` of the index equals the bytes of all tensors in the headers of its shards. That it is absent is an info.
- `metadata.total_parameters` is within 10 % of the elements that the headers add up to. It counts parameters, so buffers and
  tied weights cause small legal differences. Quantized checkpoints, which pack several parameters into one element, are left
  out.

## Why it matters
Tools plan memory, choose hardware and judge a download complete by these numbers, and the Hub shows the second as the model's
size. A wrong one means that the index was not written with these shards.

## How to fix
`ckptcheck scan --fix` corrects or adds total_size once the shards are complete. Save the index again with the library that
wrote it, or correct total_parameters.

## When it can be wrong
Some writers have counted tied tensors twice, or padding, for years, and loaders ignore the number: put a reason under
`[ignore]` if your writer does that. A model that is packed but does not say so in `config.json`, such as a GPTQ model with only
`quantize_config.json`, has fewer elements than parameters. An author may write the active parameters of a mixture of experts on
purpose. The rule is skipped while a shard is missing or unreadable, because the sums are unknown then. An equal sum does not
prove that the tensors are the right ones.

## Seen in
Edge0-AI/Edge0#104, exo-explore/exo#1956, huggingface/huggingface_hub#4221 (a 7.6 B model that says 333,312)
"""

from collections.abc import Iterator
from math import prod

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import IndexedCheckpoint


@rule("IDX007", "mismatched-totals", severity="warning", on="index", when=lambda ckpt: ckpt.index_decides)
def check(ckpt: IndexedCheckpoint) -> Iterator[Problem]:
    metadata, file = ckpt.index.metadata, ckpt.index.file
    if "total_size" not in metadata:
        yield Problem(
            "the index does not say how large the model is",
            file=file,
            key="metadata.total_size",
            severity="info",
            hint="ckptcheck scan --fix adds it",
        )
    ckpt.require_whole()
    declared = metadata.get("total_size")
    size = sum(ckpt.shards[name].nbytes for name in ckpt.model_files)
    # A tensor that several shards hold is counted once by some writers; IDX005 speaks of that.
    is_known = declared == size or declared == sum(tensor.nbytes for tensor in ckpt.tensors.values())
    if "total_size" in metadata and not is_known:
        shown = f"{declared:,} bytes" if type(declared) is int else repr(declared)
        yield Problem(
            f"total_size is {shown}, but the tensors have {size:,} bytes",
            file=file,
            key="metadata.total_size",
            hint="ckptcheck scan --fix corrects it",
        )
    declared = metadata.get("total_parameters")
    if "total_parameters" not in metadata or (ckpt.config is not None and ckpt.config.is_quantized):
        return
    elements = sum(prod(tensor.shape) for tensor in ckpt.tensors.values())
    if type(declared) is not int or abs(declared - elements) > elements // 10:
        shown = f"{declared:,}" if type(declared) is int else repr(declared)
        yield Problem(
            f"total_parameters is {shown}, but the tensors have {elements:,} elements",
            file=file,
            key="metadata.total_parameters",
            hint="write the number of parameters the model has",
        )
