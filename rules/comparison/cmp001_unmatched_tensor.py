"""One checkpoint has a tensor that the other one lacks.

## What it checks
- Every tensor of either checkpoint has a counterpart in the other.
- A counterpart has the same name, or the name that the family's table or a rename of transformers gives it, or it is part of a
  fused or stacked tensor, or it is the tensor to which this one is tied.
- Three tensors or more that only a prefix tells apart are one finding, and their values are compared.
- Buffers that loaders recompute are left out; with `--critic` also the heads.

## Why it matters
The next loader fills a dropped tensor with random numbers or zeros, often without a message. A tensor that is only in the
second checkpoint came from elsewhere: a shard of an older save, or a head that the model does not have. vLLM refuses a name
that it does not know; other loaders load the tensor.

## How to fix
- Convert again, into an empty folder, with a converter that supports the family. When exporting from Megatron, check that every
  rank took part in the export.
- If only a critic has the value head, compare with `--critic`.
- If the tensor is intended, the two checkpoints are not the same model.

## When it can be wrong
A tensor may be dropped on purpose (multi-token prediction before serving). A family without a table is matched by name only.
The second checkpoint may contain what the first stores elsewhere: a draft layer, an adapter merged under new names.

## Seen in
huggingface/transformers#45357 (a prefix), THUDM/slime#2270, NVIDIA-NeMo/RL#2124 (gpt-oss), paiml/entrenar#258,
NVIDIA-NeMo/Megatron-Bridge#1716, mflux-community/mflux#603, sgl-project/sglang#38616
"""

from collections.abc import Iterator, Mapping

from ckptcheck import Problem, rule
from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.text.formatting import count


@rule("CMP001", "unmatched-tensor", severity="error", on="comparison")
def check(comparison: Comparison) -> Iterator[Problem]:
    match = comparison.match_result
    for (ours, theirs), names in match.moved.items():
        yield Problem(
            f"{len(names)} tensors of {ours or 'the model'} are under {theirs or 'no prefix'} in the second checkpoint: "
            "loaders look for the first names",
            file=comparison.first.files.get(names[0]),
            key=names[0],
            names=tuple(names),
            hint=(f"rename {theirs}.… to {ours}.…" if theirs and ours else "rename them")
            + ", unless ckptcheck scan says that the first names are the wrong ones",
        )
    if match.missing:
        heads = all(comparison.is_head(name) for name in match.missing)
        hint = "convert again, unless it was left out on purpose or the two are different models"
        hint = "convert again, or compare with --critic if one side is a critic" if heads else hint
        yield _describe("missing in the second checkpoint", match.missing, comparison.first.files, hint)
    if match.extra:
        heads = all(comparison.is_head(name) for name in match.extra)
        hint = (
            "if a shard of an older save remains there, convert into an empty folder; if not, the first one may lack it"
        )
        hint = "compare with --critic if one side is a critic" if heads else hint
        yield _describe("only in the second checkpoint", match.extra, comparison.second.files, hint)


def _describe(where: str, found: Mapping[str, str], files: Mapping[str, str], hint: str) -> Problem:
    """Say which tensors are on one side alone. found: name → the tensor as it is stored. files: of that side."""
    first = next(iter(found.values()))
    return Problem(
        f"{count(len(found), 'tensor is', 'tensors are')} {where}: {group_names(found)}",
        file=files.get(first),
        key=first,
        names=tuple(found),
        hint=hint,
    )
