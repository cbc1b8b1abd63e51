"""A copy of an expert in the engine is not the expert of a cold load.

## What it checks
- An engine with redundant experts (`--switch redundant_experts=N`; EPLB) has more slots than experts. After every sync,
  every slot holds what a cold load has for the expert that the engine's own map names, on every rank.
- Before the first step the trial makes the engine move its experts to other slots, as its balancer does while it serves.
  Afterwards every slot still holds the expert of the map, and the logprobs are the same to rounding.
- So the syncs after a step go to moved experts, which exposes a loader that writes to the initial slots.

## Why it matters
- Requests take turns among the copies. One wrong copy spoils some tokens of some requests, which a mean of logprobs or
  a single request does not show.
- A loader that writes to the initial slots exchanges experts, although every name, shape and checksum that the trainer
  sent is right.

## How to fix
- Write each expert to all of its slots, by the current map (SGLang: `logical_to_all_physical`).
- If the engine's loader does not: turn balancing and redundant experts off, or move the experts back to their initial
  slots before an update.

## When it can be wrong
- Never for a slot: the rule compares bits. Logprobs after a move may differ by more than the tolerance if an expert's
  sums depend much on the other tokens of the batch.

## Seen in
vllm-project/vllm#55228 (a rebalance to [0, 2, 1, 3], then a reload: experts 1 and 2 are exchanged; an asynchronous
rebalance copies weights of before the update back), PrimeIntellect-ai/prime-rl#3583
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.expert_slots import WrongSlot
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.weight_names import describe_ranks
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "REF054",
    "unlike-expert-copy",
    severity="error",
    on="refit",
    when=lambda trace: trace.engine is not None and trace.engine.facts.get("redundant_experts", "0") not in ("", "0"),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    if not any(sync.slots for sync in trace.syncs):
        raise Skip("the engine does not say where its experts lie")
    reported: set[tuple[str, int]] = set()
    for number, sync in enumerate(trace.syncs):
        new = [each for each in sync.wrong_slots if (each.key[1], each.slot) not in reported]
        if new:
            yield _describe(
                trace,
                f"after sync {sync.number}",
                new,
                sync.slots,
                "write each expert to all of its slots, by the engine's map of now; or turn its balancing of experts off",
            )
            reported |= {(each.key[1], each.slot) for each in new}
        if not number and trace.expert_move is not None:
            yield from _check_move(trace, reported)


def _check_move(trace: RefitTrace, reported: set[tuple[str, int]]) -> Iterator[Problem]:
    move = trace.expert_move
    assert move is not None
    if move.wrong:
        yield _describe(
            trace,
            "after the engine moved its experts",
            list(move.wrong),
            move.slots,
            "turn the engine's balancing of experts off, or report it there: its map and its weights disagree",
        )
        reported |= {(each.key[1], each.slot) for each in move.wrong}
    elif move.logprobs is not None and not move.logprobs.within(trace.noise_floor.trainer_tolerance):
        yield Problem(
            f"every slot is right after the engine moved its experts, and its logprobs are off by up to"
            f" {move.logprobs.most:.2g} nats: it sends tokens to other slots than its map says",
            hint="turn the engine's balancing of experts off, or report it there",
        )
    elif not move.moved:
        raise Skip("the engine moved no expert, so no sync went to moved ones")


def _describe(trace: RefitTrace, when: str, wrong: list[WrongSlot], slots: int, hint: str) -> Problem:
    names = sorted({each.key[1] for each in wrong})
    examples = [
        f"slot {each.slot} of {each.key[1]}, a copy of expert {each.expert},"
        f" holds {each.held or 'neither that nor another expert'}"
        for each in wrong
    ]
    return Problem(
        f"{when}, {len(wrong):,} of {count(slots, 'slot')} for experts {'is' if len(wrong) == 1 else 'are'} wrong:"
        f" {join_truncated(examples)}{describe_ranks(trace, [each.key for each in wrong])}",
        key=names[0],
        hint=hint,
        names=tuple(names),
    )
