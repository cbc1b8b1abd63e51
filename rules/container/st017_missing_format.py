"""The `__metadata__` of a safetensors file does not say that the tensors are PyTorch's.

## What it checks
Where a file of the model has a `__metadata__`, it has a `format`, and that is `pt`, `tf`, `flax` or `mlx`. A file
without any `__metadata__` is left alone: transformers takes it for PyTorch's since 4.48 (before, it stopped).

## Why it matters
transformers 4 refuses the file (`does not contain the valid metadata`), 4.57 included; transformers 5, vLLM and
SGLang do not look. fastsafetensors could not read an empty or null `__metadata__` before August 2026.

## How to fix
`save_file(tensors, path, metadata={"format": "pt"})`.

## When it can be wrong
Where only transformers 5, vLLM, SGLang or code of your own reads the model, nothing happens: `--ignore ST017`. It is
quiet about a file without any `__metadata__`, which transformers before 4.48 refuses as well, and about `tf` or
`flax`, whose tensors may be laid out in another way than PyTorch's.

## Seen in
huggingface/safetensors#823, foundation-model-stack/fastsafetensors#96, ml-explore/mlx#743
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.document import clipped
from ckptcheck.phrase import count

FORMATS = ("pt", "tf", "flax", "mlx")
"""What transformers 4 accepts (load_state_dict in its modeling_utils.py)."""


@rule(
    "ST017",
    "missing-format",
    severity="warning",
    when=lambda ckpt: not ckpt.is_adapter and ckpt.has_shards,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    lacking: dict[str | None, list[str]] = {}
    for name in ckpt.loaded:
        metadata = ckpt.shards[name].metadata if name in ckpt.shards else None
        if metadata is not None and metadata.get("format") not in FORMATS:
            lacking.setdefault(metadata.get("format"), []).append(name)
    for found, names in lacking.items():
        what = "names no format" if found is None else f"gives the format {clipped(repr(found))}"
        others = f", and {count(len(names) - 1, 'more file')} like it" if len(names) > 1 else ""
        yield Problem(
            f"its __metadata__ {what}: transformers 4 refuses this file{others}",
            file=names[0],
            key="__metadata__",
            hint='write it with save_file(tensors, path, metadata={"format": "pt"})',
        )
    ckpt.require_headers()
