"""A tensor differs from what the manifest recorded.

## What it checks
- Every tensor of the manifest that still exists has the dtype, the shape and the digest that the manifest recorded.
- Of a Megatron run, the tensors are those of the whole model and of its optimizer, assembled from their chunks. A tensor
  whose place in a file holds something else (a file of another save), or lies beyond the end of the file, is a finding too.

## Why it matters
A corrupt download or a failing disk changes bytes and nothing else; so does a save over a checkpoint that others take for the
old one. safetensors has no checksum. torch's archives have one, but `torch.load` does not check it, and it cannot find two
files that were swapped.

## How to fix
Fetch the file again. If the change is intended, write a new manifest.

## When it can be wrong
Training changes tensors with every save: write a new manifest then. A library that stores NaN or padding with other bits also
changes them, because bytes are compared and not values. The manifest is not signed: who can write the checkpoint can often
write the manifest too.

## Seen in
vllm-project/vllm#53537, paiml/aprender#2337, safetensors#220
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.manifest import Verification
from ckptcheck.text.formatting import count, format_shape, join_truncated


@rule("MAN001", "changed-tensor", severity="error", on="manifest")
def check(verification: Verification) -> Iterator[Problem]:
    changed: dict[str, list[str]] = {}
    for name, old in verification.manifest.tensors.items():
        current = verification.current.get(name)
        if current is None or (
            current.digest == old.digest and (current.dtype, current.shape) == (old.dtype, old.shape)
        ):
            continue
        if (current.dtype, current.shape) != (old.dtype, old.shape):
            yield Problem(
                f"it was {old.dtype} {format_shape(old.shape)} and is {current.dtype} {format_shape(current.shape)}",
                file=current.file,
                key=name,
                hint="write a new manifest if the change is intended",
            )
        else:
            changed.setdefault(current.file, []).append(name)
    if verification.unreadable:
        name, reason = min(verification.unreadable.items())
        number = count(len(verification.unreadable), "tensor is", "tensors are")
        yield Problem(
            f"{number} no longer where {'it old' if len(verification.unreadable) == 1 else 'they were'}: "
            f"{join_truncated(sorted(verification.unreadable))}; {reason}",
            key=name,
            hint="fetch the file again, or write a new manifest if the change is intended",
        )
    for file, names in changed.items():
        yield Problem(
            f"{count(len(names), 'tensor has', 'tensors have')} other values than the manifest recorded: "
            f"{join_truncated(names)}",
            file=file,
            key=names[0],
            hint="fetch the file again, or write a new manifest if the change is intended",
        )
