"""A norm is all zero while others are not.

## What it checks
Of a model whose norms were trained, no norm's weight is all zero. Left out are families whose norms are centred at zero, where a
zero means one (Gemma, Qwen3-Next, Nemotron), and checkpoints that look freshly initialised.

## Why it matters
A layer multiplies its input by the norm's weight: with zeros the block computes nothing, and with a zero final norm every logit
is the same. Nothing stops.

## How to fix
Take the norm from the checkpoint this one was converted from. Where all zeros lie together a block of the file was lost.

## When it can be wrong
A family with norms centred at zero that is not known here; and gains that a method starts at zero on purpose, to switch a new
block off. At least half of the norms have to be other than zero. `--ignore VAL013`, or a reason under `[ignore]`, silences it.

## Seen in
paiml/aprender#2337 (tensors of a lost block)
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count, few
from ckptcheck.values.roles import is_norm, looks_untrained

CENTRED_AT_ZERO = re.compile(r"gemma|qwen3_(next|5)|nemotron")
"""model_type of families that compute with 1 + weight (transformers 5.23: Gemma's, Qwen3-Next's and Nemotron's norms)."""


@rule("VAL013", "zero-norm", severity="error", on="values", when=lambda ckpt: ckpt.config is not None)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    norms = [stats for stats in ckpt.values.tensors.values() if is_norm(stats)]
    zero = [stats for stats in norms if stats.zero]
    centred = ckpt.config is not None and CENTRED_AT_ZERO.search(ckpt.config.model_type or "")
    if zero and 2 * len(zero) <= len(norms) and not centred and not looks_untrained(ckpt):
        for shard in dict.fromkeys(stats.shard for stats in zero):
            names = [stats.name for stats in zero if stats.shard == shard]
            yield Problem(
                f"{count(len(names), 'norm is', 'norms are')} all zero, and the others are not: {few(names)}",
                file=shard,
                key=names[0],
                hint="take it from the checkpoint this one was converted from",
            )
    ckpt.require_values()
