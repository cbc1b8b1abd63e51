"""After an adapter was replaced under its name, the engine serves something else.

## What it checks
- A training step makes a new adapter, and the job loads it under the name of the old one. The trial does the same, in the way that
  `--update` names.
- Afterwards the adapter's slot holds the same bytes as after a cold start of the engine with the new adapter, and requests get the
  same logprobs.
- The trial requests a sequence longer than a block of the prefix cache before and after the replacement. The logprobs of its next
  tokens do not change with a reset of the cache, and equal those of a cold load of the new adapter. If not, it is a warning.

## Why it matters
- vLLM keeps an adapter under its number. A request with the same name and number and a new path gets the old adapter: every step
  after the first samples from the policy of step 1, without an error.
- Engines key cached prefixes by the adapter's name or number. A new adapter under the same name reads the keys and values of the
  old one: rollouts begin with a prompt that another policy has encoded.

## How to fix
- vLLM: `remove_lora(number)` before `add_lora`, or `LoRARequest(..., load_inplace=True)`, or a new number for every step.
- SGLang: `unload_lora_adapter` before `load_lora_adapter`.
- Reset the prefix cache after each replacement, or give every step a name of its own.

## When it can be wrong
- An engine on a GPU may choose other kernels in another process: then the logprobs differ, but no slot does.
- A job may keep the cache on purpose, as in-flight updates do: there the finding is only a warning.

## Seen in
vllm-project/vllm#48297 (RFC: adapters in the weight update), verl-project/verl#7495; NVIDIA-NeMo/RL#4018 (17 refits without a
reset of the cache)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.refit.logprob_diff import compare_logprobs
from ckptcheck.live.refit.lora.trace import LoraTrace, compare_scores
from ckptcheck.text.formatting import count, join_truncated

WAYS = {
    "reload": "unloaded and loaded again under its name",
    "inplace": "replaced in place",
    "same": "named with a new path and the same name",
}


@rule("REF050", "stale-adapter", severity="error", on="lora", when=lambda trace: trace.updated_cold is not None)
def check(trace: LoraTrace) -> Iterator[Problem]:
    assert trace.updated is not None
    assert trace.updated_cold is not None
    is_right = compare_scores(trace.updated.scores, trace.updated_cold.scores).most <= trace.exact_tolerance
    yield from _find_wrong_adapter(trace)
    if is_right and trace.cold_probe is not None:
        yield from _find_stale_cache(trace)


def _find_wrong_adapter(trace: LoraTrace) -> Iterator[Problem]:
    assert trace.loaded is not None
    assert trace.updated is not None
    assert trace.updated_cold is not None
    slots = trace.updated.differing_slots(trace.updated_cold)
    gap = compare_scores(trace.updated.scores, trace.updated_cold.scores)
    hint = "unload the adapter before you load the new one, or give every step a name and a number of its own"
    way = f"after the adapter was {WAYS[trace.update]}"
    if slots and not trace.updated.differing_slots(trace.loaded):
        yield Problem(
            f"{way}, requests still get the old one: its slot holds what the first load wrote, and logprobs differ by up to"
            f" {gap.most:.2g} nats from those of the new adapter",
            key=trace.adapter,
            hint=hint,
        )
    elif slots:
        stale = sorted(set(slots) - set(trace.updated.differing_slots(trace.loaded)))
        old = f"; {join_truncated(stale)} {'is' if len(stale) == 1 else 'are'} still the old one's" if stale else ""
        yield Problem(
            f"{way}, {count(len(slots), 'tensor')} of its slot {'is' if len(slots) == 1 else 'are'} not what a cold load of the"
            f" new adapter writes: {join_truncated(slots)}; logprobs differ by up to {gap.most:.2g} nats{old}",
            key=slots[0],
            hint=hint,
        )
    elif gap.most > trace.exact_tolerance:
        yield Problem(
            f"{way}, its slot is right, and logprobs differ by up to {gap.most:.2g} nats from those of a cold load of the new"
            " adapter: the engine computes with another slot, or with another scale",
            key=trace.adapter,
            hint=hint,
        )


def _find_stale_cache(trace: LoraTrace) -> Iterator[Problem]:
    assert trace.cache_probe is not None
    assert trace.cold_probe is not None
    cached, after_reset = trace.cache_probe.cached, trace.cache_probe.after_reset
    first = [scores.decode_logprobs[:1] for scores in (cached, after_reset, trace.cold_probe)]
    stale, reset = (compare_logprobs([one], first[2:]).most for one in first[:2])
    if reset > trace.exact_tolerance:
        yield Problem(
            f"after a reset of the prefix cache, {after_reset.cached_tokens} tokens still came from the cache of the old"
            f" adapter, and the next logprob differs by {reset:.2g} nats from a cold load of the new one",
            key=trace.adapter,
            hint="give every step's adapter a name of its own",
            severity="warning",
        )
    elif stale > trace.exact_tolerance:
        yield Problem(
            f"after the adapter was replaced under its name, {cached.cached_tokens} tokens came from the prefix cache of the old"
            f" one, and the next logprob differs by {stale:.2g} nats",
            key=trace.adapter,
            hint="reset the prefix cache after each replacement, or give every step's adapter a name of its own",
            severity="warning",
        )
