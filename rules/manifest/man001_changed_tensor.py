"""A tensor is not what it was when the manifest was taken.

## What it checks
Every tensor of the manifest that is still there has the dtype, the shape and the digest it had. Of a Megatron run, the
tensors are those of the whole model and of its optimizer, put together from their chunks; one whose place in a file holds
something else, as in a file of another save, is a finding too, and so is one that its file ends before.

## Why it matters
A corrupt download or a failing disk changes bytes and nothing else; so does a save over a checkpoint that others take for
the old one. safetensors has no checksum; torch's archives have one, which `torch.load` does not look at, and which two
files that were swapped do not break.

## How to fix
Fetch the file again, or take a new manifest if the change was meant.

## When it can be wrong
Every save after another step of training changes tensors, and that is what it was for: take a new manifest. So does a
library that stores NaN or padding with other bits, for bytes are compared and not values. The manifest is not signed:
who can write the checkpoint can often write the manifest too.

## Seen in
vllm-project/vllm#53537, paiml/aprender#2337, safetensors#220
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.manifest import Verification
from ckptcheck.phrase import count, few, shape


@rule("MAN001", "changed-tensor", severity="error", on="manifest")
def check(seen: Verification) -> Iterator[Problem]:
    changed: dict[str, list[str]] = {}
    for name, was in seen.manifest.tensors.items():
        found = seen.now.get(name)
        if found is None or (found.digest == was.digest and (found.dtype, found.shape) == (was.dtype, was.shape)):
            continue
        if (found.dtype, found.shape) != (was.dtype, was.shape):
            yield Problem(
                f"it was {was.dtype} {shape(was.shape)} and is {found.dtype} {shape(found.shape)}",
                file=found.file,
                key=name,
                hint="take a new manifest if the change was meant",
            )
        else:
            changed.setdefault(found.file, []).append(name)
    if seen.broken:
        name, reason = min(seen.broken.items())
        number = count(len(seen.broken), "tensor is", "tensors are")
        yield Problem(
            f"{number} no longer where {'it was' if len(seen.broken) == 1 else 'they were'}: {few(sorted(seen.broken))}; {reason}",
            key=name,
            hint="fetch the file again, or take a new manifest if the change was meant",
        )
    for file, names in changed.items():
        yield Problem(
            f"{count(len(names), 'tensor has', 'tensors have')} other values than when the manifest was taken: {few(names)}",
            file=file,
            key=names[0],
            hint="fetch the file again, or take a new manifest if the change was meant",
        )
