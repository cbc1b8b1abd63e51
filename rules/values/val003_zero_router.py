"""A router is zero or constant, or the embedding or the head is all zero.

## What it checks
- The token embedding, the output head and the routers (the tensors that choose experts) are not all zero.
- A router holds more than one number.
- In a checkpoint that looks freshly initialised as a whole, routers may be zero or constant in all layers, for some architectures
  start them so. One layer whose router is zero while others are not is reported, and so are the embedding and the head.
- VAL016 reports a checkpoint of nothing but zeros.

## Why it matters
- With a zero or constant router all experts score the same, and the engine's sort decides by accident which ones it takes.
- With a zero head all logits are equal.
- Nothing stops, and no log line reports it.

## How to fix
Take the tensor from the checkpoint this one was converted from, and find the step that lost it. The usual cause is a router
that a quantizer allocated and never filled.

## When it can be wrong
- The embedding may be zero in a model that only receives embeddings, and the head in one whose inference code replaces it.
- A router may be zero that was just added to a dense model and not trained yet ("upcycling"). All its experts are equal then,
  and VAL009 reports that too.
- The rule knows routers by the names `gate` and `router`. VAL004 reports one with another name.
- `--ignore VAL003`, or a reason under `[ignore]`, silences it.

## Seen in
vllm-project/vllm-omni#5573, paiml/aprender#2337 (lm_head)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.values.detectors.blank_weights import find_blank_tensors
from ckptcheck.values.detectors.init_detection import find_initial_constants
from ckptcheck.values.detectors.roles import find_vocabulary_tensors, is_router
from ckptcheck.values.detectors.zeroed_slices import find_zero_rank_shards

EFFECTS = {
    "the token embedding": "every token is the same to the model",
    "the output head": "every token gets the same logit",
}


@rule("VAL003", "zero-router", severity="error", on="values", when=lambda ckpt: ckpt.components.stack is not None)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    roles = find_vocabulary_tensors(ckpt)
    wholes = {part: whole for whole, parts in ckpt.weight_parts.items() for part in parts}
    reported: set[str] = set()
    elsewhere = {name for parts in find_zero_rank_shards(ckpt).values() for name in parts} | find_blank_tensors(ckpt)
    initial = False
    for name, stats in ckpt.values.tensors.items():
        is_a_router = name not in roles and is_router(ckpt, stats)
        is_constant = is_a_router and stats.constant and not (stats.nan or stats.inf)
        if (
            name in ckpt.tensor_to_file
            and (is_constant or (stats.zero and (name in roles or is_a_router)))
            and name not in elsewhere
        ):
            if name in find_initial_constants(ckpt):
                initial = True
                continue
            whole = wholes.get(name, name)
            if whole in reported:
                continue
            reported.add(whole)
            role = roles.get(name, "this router")
            yield Problem(
                f"{role} {'is all zero' if stats.zero else 'holds one number everywhere'}: "
                + EFFECTS.get(role, "every expert gets the same score"),
                file=stats.shard,
                key=whole,
                hint="compare the file's hash with the original's; if it is the same, take the router from the source",
            )
    ckpt.require_values()
    if initial:
        raise Skip("the checkpoint looks freshly initialised: its norms are constant")
