"""No tensor of the two checkpoints could be compared.

## What it checks
At least one pair of tensors was compared. A pair needs counterparts of the same shape (CMP003).

## Why it matters
A check that compares nothing passes everything. A wrong prefix or a wrong folder looks like this.

## How to fix
- Check that both are the same model. A family without a table is matched by name only.
- Where all names of one side have a prefix (`module.` of DDP, `_orig_mod.` of torch.compile, `base_model.model.` of PEFT),
  the finding names it: remove it.

## When it can be wrong
Two checkpoints of the same model have no pair if each uses names of its own and the family has no table. Nor have two
adapters of different models, or a model and its adapter (merge it first). A single pair silences this rule; CMP001
reports what remained without a counterpart.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#2892, sgl-project/sglang#38616 (a check that filtered all names away)
"""

from collections import Counter
from collections.abc import Collection, Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.matching.comparison import Comparison


@rule("CMP006", "empty-comparison", severity="error", on="comparison")
def check(comparison: Comparison) -> Iterator[Problem]:
    shapes = len(comparison.match_result.shape_mismatches)
    if not comparison.match_result.pairs and shapes:
        others = (
            "the only counterpart has another shape"
            if shapes == 1
            else f"all {shapes:,} counterparts have other shapes"
        )
        yield Problem(f"nothing was compared: {others}", hint="check that both are the same model")
    elif not comparison.match_result.pairs:
        ours, theirs = (next(iter(side.stored), "nothing") for side in (comparison.first, comparison.second))
        text, hint = f"the first checkpoint holds {ours}, the second {theirs}", "check that both are the same model"
        for one, other, which in (
            (comparison.first, comparison.second, "second"),
            (comparison.second, comparison.first, "first"),
        ):
            if prefix := _prefix(one.stored, other.stored):
                text = f"the names of the {which} checkpoint are those of the other with the prefix {prefix}"
                hint = "save the model without its wrapper, or remove the prefix"
        yield Problem(f"nothing was compared: no tensor has a counterpart; {text}", hint=hint)


def _prefix(plain: Collection[str], wrapped: Collection[str]) -> str:
    """Return the prefix that turns the plain names into nine of ten of the wrapped ones; "" if there is none."""
    names, prefixes = set(plain), Counter[str]()
    for name in wrapped:
        parts = name.split(".")
        prefixes.update({".".join(parts[:cut]) + "." for cut in range(1, len(parts)) if ".".join(parts[cut:]) in names})
    prefix, number = prefixes.most_common(1)[0] if prefixes else ("", 0)
    return prefix if number >= 0.9 * len(wrapped) else ""
