"""The `__metadata__` of a safetensors file does not declare the format `pt`.

## What it checks
If a file of the model has a `__metadata__`, its `format` is `pt`, `tf`, `flax` or `mlx`. A file without `__metadata__` is
excluded: transformers treats it as PyTorch since 4.48 (before, it stopped).

## Why it matters
transformers 4 refuses the file (`does not contain the valid metadata`), 4.57 included; transformers 5, vLLM and SGLang do not
check. fastsafetensors could not read an empty or null `__metadata__` before August 2026.

## How to fix
`save_file(tensors, path, metadata={"format": "pt"})`.

## When it can be wrong
If only transformers 5, vLLM, SGLang or your own code reads the model, nothing fails: use `--ignore ST017`. The rule is quiet
about a file without `__metadata__`, which transformers before 4.48 refuses as well, and about `tf` or `flax`, whose tensors
may have another layout than PyTorch's.

## Seen in
huggingface/safetensors#823, foundation-model-stack/fastsafetensors#96, ml-explore/mlx#743
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.document import clip
from ckptcheck.text.formatting import count

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
    for name in ckpt.model_files:
        metadata = ckpt.shards[name].metadata if name in ckpt.shards else None
        if metadata is not None and metadata.get("format") not in FORMATS:
            lacking.setdefault(metadata.get("format"), []).append(name)
    for found, names in lacking.items():
        what = "names no format" if found is None else f"gives the format {clip(repr(found))}"
        others = f", and {count(len(names) - 1, 'more file')} like it" if len(names) > 1 else ""
        yield Problem(
            f"its __metadata__ {what}: transformers 4 refuses this file{others}",
            file=names[0],
            key="__metadata__",
            hint='write it with save_file(tensors, path, metadata={"format": "pt"})',
            names=tuple(names),
        )
    ckpt.require_headers()
