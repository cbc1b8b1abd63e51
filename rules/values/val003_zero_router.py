"""A router is zero or one number throughout, or the embedding or the head is all zero.

## What it checks
The tensors that choose experts, the token embedding and the output head hold something else than zeros, and a router more
than one number. A checkpoint that
looks freshly initialised as a whole is left out: some architectures start routers at zero.

## Why it matters
With a zero or constant router all experts score the same, and which ones are taken is an accident of the engine's sort; logits of a
zero head are all equal. Nothing stops, and no log line says so.

## How to fix
Take the tensor from the checkpoint this one was converted from, and find the step that lost it: routers quantized and never
filled are the usual one.

## When it can be wrong
The embedding of a model that is only fed with embeddings, and a head that its inference code replaces, may be zero. So
may a router that was just added to a dense model, before its first training ("upcycling"); all its experts are equal then,
and VAL009 says so too. A router that vLLM or SGLang call by another name than `gate` or `router` is VAL004's.
`--ignore VAL003`, or a reason under `[ignore]`, silences it.

## Seen in
vllm-project/vllm-omni#5573, paiml/aprender#2337 (lm_head)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.values.fresh import looks_untrained
from ckptcheck.values.roles import is_router, vital
from ckptcheck.values.shards import zero_shards


@rule("VAL003", "zero-router", severity="error", on="values", when=lambda ckpt: ckpt.anatomy.stack is not None)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    roles = vital(ckpt)
    wholes = {part: whole for whole, parts in ckpt.split.items() for part in parts}
    told: set[str] = set()
    partly = {name for parts in zero_shards(ckpt).values() for name in parts}
    for name, stats in ckpt.values.tensors.items():
        router = name not in roles and is_router(ckpt, stats)
        filled = router and stats.constant and not (stats.nan or stats.inf)
        if name in ckpt.holders and (filled or (stats.zero and (name in roles or router))) and name not in partly:
            if looks_untrained(ckpt):
                raise Skip("the checkpoint looks freshly initialised: its norms are constant")
            whole = wholes.get(name, name)
            if whole in told:
                continue
            told.add(whole)
            what = roles.get(name, "this router")
            yield Problem(
                f"{what} {'is all zero' if stats.zero else 'holds one number everywhere'}: "
                + ("every expert scores the same" if name not in roles else "every token is the same to the model"),
                file=stats.shard,
                key=whole,
                hint="take it from the checkpoint this one was converted from",
            )
    ckpt.require_values()
