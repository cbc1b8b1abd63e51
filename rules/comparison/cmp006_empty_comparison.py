"""No tensor of the two checkpoints belongs together.

## What it checks
At least one tensor was compared, which takes a counterpart of the same shape (CMP003).

## Why it matters
A gate that compares nothing passes everything. It is how a wrong prefix or a wrong folder looks.

## How to fix
See that both are the same model. A family that has no table is compared by names alone. Where all names of one side have a
prefix before them (`module.` of DDP, `_orig_mod.` of torch.compile, `base_model.model.` of PEFT) the finding names it.

## When it can be wrong
Two checkpoints that were each written with names of their own, of a family for which there is no table, are the same
model and have no pair. So have two adapters of different models, or a model and its adapter: merge it first. One pair
is enough to be quiet; what remained unpaired is CMP001 and CMP002.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#2892, sgl-project/sglang#38616 (a check that filtered all names away)
"""

from collections import Counter
from collections.abc import Collection, Iterator

from ckptcheck import Problem, rule
from ckptcheck.comparison.comparison import Comparison


@rule("CMP006", "empty-comparison", severity="error", on="comparison")
def check(seen: Comparison) -> Iterator[Problem]:
    shapes = len(seen.accounts.shapes)
    if not seen.accounts.pairs and shapes:
        others = (
            "the only counterpart has another shape"
            if shapes == 1
            else f"all {shapes:,} counterparts have other shapes"
        )
        yield Problem(f"nothing was compared: {others}", hint="see that both are the same model")
    elif not seen.accounts.pairs:
        ours, theirs = (next(iter(side.stored), "nothing") for side in (seen.first, seen.second))
        text, hint = f"the first checkpoint holds {ours}, the second {theirs}", "see that both are the same model"
        for one, other, which in ((seen.first, seen.second, "second"), (seen.second, seen.first, "first")):
            if prefix := _prefix(one.stored, other.stored):
                text = f"the names of the {which} are those of the other with {prefix} before them"
                hint = "save the model without its wrapper, or take the prefix off"
        yield Problem(f"nothing was compared: no tensor has a counterpart; {text}", hint=hint)


def _prefix(plain: Collection[str], wrapped: Collection[str]) -> str:
    """Return what stands before nine of ten of these names and makes them the others; "" where nothing does."""
    names, found = set(plain), Counter[str]()
    for name in wrapped:
        parts = name.split(".")
        found.update({".".join(parts[:cut]) + "." for cut in range(1, len(parts)) if ".".join(parts[cut:]) in names})
    prefix, number = found.most_common(1)[0] if found else ("", 0)
    return prefix if number >= 0.9 * len(wrapped) else ""
