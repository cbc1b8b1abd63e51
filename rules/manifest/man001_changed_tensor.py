"""A tensor differs from what the manifest recorded.

## What it checks
- Every tensor of the manifest that still exists has the dtype, the shape and the digest that the manifest recorded.
- Of a Megatron run, the tensors are those of the whole model and of its optimizer, assembled from their chunks. A tensor whose
  place in a file holds something else (a file of another save), or lies beyond the end of the file, is a finding too.
- Where (nearly) no tensor is as it was recorded, the manifest is of another model, another training or another step: one
  finding says so, and MAN002 is skipped. Tensors whose bytes occur several times in the manifest, such as norms of ones, do not
  count, and of fewer than eight tensors each is listed. A cast of all tensors is one finding.
- Weights that are stored in another layout (an export of the run, projections that were joined) are compared by MAN005.

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
from ckptcheck.compare.verification import Verification
from ckptcheck.text.formatting import count, format_shape, join_truncated

HINT = "fetch the file again, or write a new manifest if the change is intended"


@rule("MAN001", "changed-tensor", severity="error", on="manifest")
def check(verification: Verification) -> Iterator[Problem]:
    verification.require_same_layout()
    if verification.other_model:
        yield Problem(
            verification.other_model,
            hint="verify it with its own manifest; ckptcheck manifest writes one, ckptcheck diff compares two checkpoints",
        )
        return
    changed: dict[str, list[str]] = {}
    reformed: dict[tuple[str, str, tuple[int, ...], tuple[int, ...]], list[str]] = {}
    for name, old in verification.manifest.tensors.items():
        current = verification.current.get(name)
        if current is None or (
            current.digest == old.digest and (current.dtype, current.shape) == (old.dtype, old.shape)
        ):
            continue
        if (current.dtype, current.shape) != (old.dtype, old.shape):
            # a cast keeps the shapes, and is one finding
            shapes = (old.shape, current.shape) if old.shape != current.shape else ((), ())
            reformed.setdefault((old.dtype, current.dtype, *shapes), []).append(name)
        else:
            changed.setdefault(current.file, []).append(name)
    for names in reformed.values():
        yield _describe_reformed(verification, names)
    if verification.unreadable:
        name, reason = min(verification.unreadable.items())
        number = count(len(verification.unreadable), "tensor is", "tensors are")
        yield Problem(
            f"{number} no longer where {'it old' if len(verification.unreadable) == 1 else 'they were'}: "
            f"{join_truncated(sorted(verification.unreadable))}; {reason}",
            key=name,
            hint=HINT,
        )
    for file, names in changed.items():
        yield Problem(
            f"{count(len(names), 'tensor has', 'tensors have')} other values than the manifest recorded: "
            f"{join_truncated(names)}",
            file=file,
            key=names[0],
            hint=HINT,
        )


def _describe_reformed(verification: Verification, names: list[str]) -> Problem:
    """Describe tensors that all went from one dtype and shape to another."""
    old, current = verification.manifest.tensors[names[0]], verification.current[names[0]]
    before, after = old.dtype, current.dtype
    if len(names) == 1 or old.shape != current.shape:
        before, after = f"{before} {format_shape(old.shape)}", f"{after} {format_shape(current.shape)}"
    what = f"it was {before} and is {after}"
    if len(names) > 1:
        what = f"{count(len(names), 'tensor')} were {before} and are {after}: {join_truncated(names)}"
    return Problem(what, file=current.file, key=names[0], hint=HINT)
