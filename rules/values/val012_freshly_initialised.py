"""A weight looks freshly initialised, and the rest of the model does not.

## What it checks
Four things, each only where the rest of the model is trained:

- A matrix looks freshly drawn: its values are spread like a uniform or normal distribution without a single outlier, and
  the norms of its rows, and of its columns, differ no more than chance makes them. Its siblings (the same matrix in other
  layers or experts) or most other kinds of matrices in the model do not look so.
- A norm is one number, as norms start, and at least eight times as many siblings are not; one that is zero is VAL013's.
- All norms of the layers are one number each, and neither the final norm is nor do the matrices look drawn.
- A reward, value or classification head is uniform exactly within ± 1 / sqrt(columns), as `torch.nn.Linear` starts it.

It reads 4 KiB of every matrix of at least 32 × 32 (of at most 256 siblings, those with the smallest largest magnitude), and
512 KiB or 64 rows of those that this leaves suspect.

## Why it matters
A loader that misses a key starts the weight from random numbers and says so in one line of a log: transformers' "Some weights
were not initialized from the model checkpoint and are newly initialized". Once somebody saves that model, nothing says so
any more: names, shapes and sizes are right. The same is left by a converter that allocates a weight and never fills it.

## How to fix
Look for "newly initialized" or "MISSING" in the log of whoever loaded the checkpoint before this was saved. Take the weight
from that checkpoint, under the name the loader expects, and save again.

## When it can be wrong
- The weight is new on purpose and its training is still to come: a reward head, layers of multi-token prediction, an added
  projector. Train it before the model is served.
- It is random by design and frozen. Names with `lora_A`, `vera`, `random`, `fourier`, `gaussian_matrix`, `quantizer` or
  `pooler` are left out; others are not known.
- Nothing ever used it: an expert that the router never chose, a projection whose output is dropped. That is worth knowing,
  but is not an error of saving.
- Norms that could not move, and a final one that did: steps of training that are small beside the precision of BF16 leave a
  1 as it is. Where a method multiplies norms into the matrices behind them (QuaRot), the final one goes too, and nothing is
  said.
- The model was trained briefly and unevenly: some kinds of matrices moved, others hardly did. Where most have not moved,
  nothing is said.

It cannot see a fresh matrix with fewer than 32 rows or columns, one that was quantized, one expert in a tensor that holds
them all, or a head that started from a normal distribution. `--ignore VAL012`, or a reason under `[ignore]`, silences it.

## Seen in
NVIDIA/Megatron-LM#5844 (every expert as it was allocated), sgl-project/sglang#16235 (a layer from random numbers),
huggingface/transformers#34759, hiyouga/LlamaFactory#9369 (a value head as it started)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count, few
from ckptcheck.values.fresh import (
    Draw,
    Family,
    fresh_families,
    looks_untrained,
    unmoved_norms,
    untouched_heads,
)
from ckptcheck.values.norms import lost_norms, zero_norms

HINT = "look for newly initialized weights in the log of what loaded it before it was saved; if it is new on purpose, train it"


@rule(
    "VAL012",
    "freshly-initialised",
    severity="warning",
    on="values",
    when=lambda ckpt: bool(ckpt.tensors) and not ckpt.is_adapter,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    values = ckpt.values
    if ckpt.source.local is None:
        raise Skip("not looked for on the Hub")
    if looks_untrained(ckpt):
        raise Skip("the checkpoint looks freshly initialised: its norms are constant")
    drawn: dict[str, list[tuple[Draw, Family]]] = {}
    for family in fresh_families(ckpt):
        for draw in family.fresh:
            drawn.setdefault(ckpt.holders[draw.name], []).append((draw, family))
    for shard, found in drawn.items():
        draw, family = found[0]
        others = f"; {count(len(found) - 1, 'more matrix looks', 'more matrices look')} so" if len(found) > 1 else ""
        named = f": {few([other.name for other, _ in found[1:]])}" if others else ""
        yield Problem(
            f"its values look freshly drawn ({draw.kind}, norms of rows equal within {100 * draw.spread:.2g} %), "
            + (
                "most other matrices of the model do not"
                if family.is_fresh
                else f"those of {count(family.trained, 'sibling')} do not"
            )
            + others
            + named,
            file=shard,
            key=draw.name,
            hint=HINT,
        )
    zero = (
        {stats.name for stats in zero_norms(ckpt)} if ckpt.config is not None or ckpt.arguments is not None else set()
    )
    for unmoved in unmoved_norms(ckpt).values():
        still = [stats for stats in unmoved if stats.name not in zero]  # those are VAL013's
        if not still:
            continue
        names = [stats.name for stats in still]
        yield Problem(
            f"{count(len(names), 'norm is', 'norms are')} {still[0].absmax:.3g} throughout, as before training, "
            f"and most siblings are not: {few(names)}",
            file=still[0].shard,
            key=names[0],
            hint=HINT,
        )
    lost, moved = lost_norms(ckpt)
    if moved is not None:
        yield Problem(
            f"all {len(lost)} norms of the layers are one number each, as before training, and the matrices and {moved} "
            "are trained",
            file=lost[0].shard,
            key=lost[0].name,
            hint="take them from the checkpoint this one was converted from",
        )
    for name in untouched_heads(ckpt):
        columns = values.tensors[name].shape[1]
        yield Problem(
            f"this head is uniform within 1 / sqrt({columns:,}), as torch.nn.Linear starts it: it was never trained",
            file=ckpt.holders[name],
            key=name,
            hint="train it before anything is scored with it",
        )
    ckpt.require_values()
