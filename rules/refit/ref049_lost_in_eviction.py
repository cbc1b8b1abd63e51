"""Other adapters in the engine's slots change what a request computes.

## What it checks
- The engine holds a few adapters at once. After requests for more adapters than it has slots, a request with the first
  adapter gets the same logprobs as before, and the slot holds the same bytes.
- A request without an adapter gets the same logprobs as before the engine loaded one.

## Why it matters
- Under load the engine evicts every adapter and loads it again. If a slot keeps a part of another adapter, the engine
  answers requests of one policy with a mixture of two.

## How to fix
- Give the engine as many slots as there are adapters, and update the engine.

## When it can be wrong
- An engine on a GPU may choose other kernels for another batch: then the logprobs differ, but no slot does.

## Seen in
huggingface/trl#7017 (adapters evicted while requests use them)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.refit.lora.trace import LoraTrace, compare_scores
from ckptcheck.text.formatting import count, join_truncated


@rule("REF049", "lost-in-eviction", severity="error", on="lora", when=lambda trace: trace.evicted is not None)
def check(trace: LoraTrace) -> Iterator[Problem]:
    assert trace.loaded is not None
    assert trace.evicted is not None
    others = f"after {2 * trace.slots} other adapters went through {count(trace.slots, 'slot')}"
    gap = compare_scores(trace.evicted.scores, trace.loaded.scores)
    if slots := trace.evicted.differing_slots(trace.loaded):
        yield Problem(
            f"{others}, {count(len(slots), 'tensor')} of the adapter's slot {'is' if len(slots) == 1 else 'are'} not what its"
            f" first load wrote: {join_truncated(slots)}; logprobs differ by up to {gap.most:.2g} nats",
            key=slots[0],
            hint="give the engine as many slots as there are adapters (max_loras, max_loras_per_batch)",
        )
    elif gap.most > trace.exact_tolerance:
        yield Problem(
            f"{others}, requests with the adapter get logprobs that differ by up to {gap.most:.2g} nats from those after its"
            " first load, although its slot holds the same: the engine computes with another slot, or with a cache",
            key=trace.adapter,
            hint="give the engine as many slots as there are adapters (max_loras, max_loras_per_batch)",
        )
    base = compare_scores(trace.base_after or (), trace.base)
    if base.most > trace.exact_tolerance:
        yield Problem(
            f"{others}, requests without an adapter get logprobs that differ by up to {base.most:.2g} nats from those before"
            " any was loaded",
            key=trace.target,
            hint="serve the base model from an engine without adapters until this is mended",
        )
