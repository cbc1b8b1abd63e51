"""A norm is zero while others are not.

## What it checks
Of a model whose norms were trained, no norm's weight is all zero, and none is zero in more than an eighth of its elements in a
row where other norms of its length are not. Left out are models whose norms are centred at zero, where a zero means one:
families such as Gemma, Qwen3-Next, Nemotron and Step-3.5 by any `model_type` in the config, Megatron runs by
`apply_layernorm_1p`; and checkpoints that look freshly initialised. Nobody looks for a part on the Hub.

## Why it matters
A layer multiplies its input by the norm's weight: with zeros the block computes nothing, and with a zero final norm every logit
is the same. Zeros in a part of it switch off these channels. Nothing stops.

## How to fix
Take the norm from the checkpoint this one was converted from. Where all zeros lie together a block of the file was lost.

## When it can be wrong
A family with norms centred at zero that is not known here, or a folder of torch.distributed.checkpoint, which does not say its
family; and gains that a method starts at zero on purpose, to switch a new block off. At least half of the norms have to be
other than zero. Of a norm in part, a method that prunes channels which lie together, in some layers only. `--ignore VAL013`,
or a reason under `[ignore]`, silences it.

## Seen in
paiml/aprender#2337 (tensors of a lost block)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count, few
from ckptcheck.values.fresh import looks_untrained
from ckptcheck.values.norms import torn_norms, zero_norms

HINT = "take it from the checkpoint this one was converted from"


@rule(
    "VAL013",
    "zero-norm",
    severity="error",
    on="values",
    when=lambda ckpt: ckpt.config is not None or ckpt.arguments is not None,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    zero = zero_norms(ckpt)
    if zero and looks_untrained(ckpt):
        raise Skip("the checkpoint looks freshly initialised: its norms are constant")
    for shard in dict.fromkeys(stats.shard for stats in zero):
        names = [stats.name for stats in zero if stats.shard == shard]
        yield Problem(
            f"{count(len(names), 'norm is', 'norms are')} all zero, and the others are not: {few(names)}",
            file=shard,
            key=names[0],
            hint=HINT,
        )
    for name, (begin, end) in torn_norms(ckpt).items():
        yield Problem(
            f"elements {begin:,}-{end - 1:,} of {ckpt.tensors[name].shape[0]:,} are zero, as no other norm of its length is",
            file=ckpt.holders[name],
            key=name,
            hint=HINT,
        )
    ckpt.require_values()
    if ckpt.source.local is None:
        raise Skip("parts of norms are not looked at on the Hub")
