"""A request with a LoRA adapter does not get what the adapter computes.

## What it checks
- The adapter is merged into a copy of the base model, and the engine is started cold from that copy. A request with the adapter
  gets the same logprobs, within rounding: ten times what moving every matrix by one unit in its last place changes for the largest
  difference and three times on average, at least 1e-5 and 2e-6 nats.
- Eviction: after requests for more adapters than the engine has slots, a request with the first adapter gets the same logprobs as
  before, and the slot holds the same bytes. A request without an adapter gets the same as before the engine loaded one.
- Replacement: the trial loads another adapter under the name of the old one, as a job does after a step, in the way that `--update`
  names. The slot then holds the same bytes as after a cold start with the new adapter, and requests get the same logprobs.
- The next tokens of a sequence that is longer than a block of the prefix cache do not change with a reset of the cache after the
  replacement, and equal those of a cold load. If not, it is a warning.

## Why it matters
- The engine serves the base model, scales the adapter differently from the trainer, or mixes two adapters. Rollouts come from
  another policy than the one in training, and no call reports an error.
- Under load the engine evicts every adapter and loads it again.
- vLLM keeps an adapter under its number. A request with the same name and number and a new path gets the old adapter: every step
  after the first samples from the policy of step 1.
- Engines key cached prefixes by the adapter's name or number. A new adapter under the same name reads the keys and values of the
  old one: rollouts begin with a prompt that another policy has encoded.

## How to fix
- If the engine returns the base model's logprobs, no module of the adapter matched: compare the names in adapter_model.safetensors
  with the modules for which the engine has LoRA. If it returns others, compare the scale: lora_alpha, r, use_rslora, alpha_pattern.
- Eviction: give the engine as many slots as there are adapters, and update the engine.
- vLLM: `remove_lora(number)` before `add_lora`, or `LoRARequest(..., load_inplace=True)`, or a new number for every step. SGLang:
  `unload_lora_adapter` before `load_lora_adapter`.
- Reset the prefix cache after each replacement, or give every step a name of its own.

## When it can be wrong
- An engine that computes the adapter in a narrower dtype than the base model rounds more than the merged copy.
- An engine on a GPU may choose other kernels for another batch, or in another process: then the logprobs differ, but no slot does.
- A job may keep the cache on purpose, as in-flight updates do: there the finding is only a warning.

## Seen in
verl-project/verl#7495 (the engine got none of 399 LoRA tensors); huggingface/trl#7017 (adapters evicted while requests use them);
vllm-project/vllm#48297 (RFC: adapters in the weight update); NVIDIA-NeMo/RL#4018 (17 refits without a reset of the cache)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.logprob_diff import LogprobDiff, compare_logprobs
from ckptcheck.live.refit.lora.trace import LoraTrace, compare_scores
from ckptcheck.text.formatting import count, join_truncated

LEAST = LogprobDiff(1e-5, 2e-6)
"""Tolerance in nats where rounding is less."""
MORE_SLOTS = "give the engine as many slots as there are adapters (max_loras, max_loras_per_batch)"
WAYS = {
    "reload": "unloaded and loaded again under its name",
    "inplace": "replaced in place",
    "same": "named with a new path and the same name",
}


@rule("REF048", "adapter-not-served", severity="error", on="lora", when=lambda trace: trace.loaded is not None)
def check(trace: LoraTrace) -> Iterator[Problem]:
    yield from _find_unserved_adapter(trace)
    yield from _find_eviction(trace)
    if trace.updated is not None and trace.updated_cold is not None:
        yield from _find_wrong_adapter(trace)
        is_right = compare_scores(trace.updated.scores, trace.updated_cold.scores).most <= trace.exact_tolerance
        if is_right and trace.cold_probe is not None:
            yield from _find_stale_cache(trace)
    if trace.merged is not None and compare_scores(trace.merged, trace.base).within(_find_tolerance(trace)):
        raise Skip("merged into the base model, the adapter moves no logprob by more than rounding does")


def _find_tolerance(trace: LoraTrace) -> LogprobDiff:
    return LogprobDiff(10 * trace.rounding.most, 3 * trace.rounding.mean) | LEAST


def _find_unserved_adapter(trace: LoraTrace) -> Iterator[Problem]:
    if trace.merged is None:
        return
    assert trace.loaded is not None
    tolerance = _find_tolerance(trace)
    gap, effect = compare_scores(trace.loaded.scores, trace.merged), compare_scores(trace.merged, trace.base)
    if gap.within(tolerance):
        return
    if compare_scores(trace.loaded.scores, trace.base).most <= trace.exact_tolerance:
        yield Problem(
            f"requests with the adapter get the logprobs of the base model; merged into it, the adapter moves them by up to"
            f" {effect.most:.2g} nats: the engine applies nothing of it",
            key=trace.adapter,
            hint="compare the names in adapter_model.safetensors with the modules for which the engine has LoRA",
        )
        return
    yield Problem(
        f"with the adapter, logprobs differ by up to {gap.most:.2g} nats, {gap.mean:.2g} on average, from those of a checkpoint"
        f" into which it is merged; rounding explains {tolerance.most:.2g} and {tolerance.mean:.2g}",
        key=trace.adapter,
        hint="compare the scale of the adapter (lora_alpha, r, use_rslora) and the modules that it changes on both sides",
    )


def _find_eviction(trace: LoraTrace) -> Iterator[Problem]:
    if trace.evicted is None:
        return
    assert trace.loaded is not None
    others = f"after {2 * trace.slots} other adapters went through {count(trace.slots, 'slot')}"
    gap = compare_scores(trace.evicted.scores, trace.loaded.scores)
    if slots := trace.evicted.differing_slots(trace.loaded):
        yield Problem(
            f"{others}, {count(len(slots), 'tensor')} of the adapter's slot {'is' if len(slots) == 1 else 'are'} not what its"
            f" first load wrote: {join_truncated(slots)}; logprobs differ by up to {gap.most:.2g} nats",
            key=slots[0],
            hint=MORE_SLOTS,
        )
    elif gap.most > trace.exact_tolerance:
        yield Problem(
            f"{others}, requests with the adapter get logprobs that differ by up to {gap.most:.2g} nats from those after its"
            " first load, although its slot holds the same: the engine computes with another slot, or with a cache",
            key=trace.adapter,
            hint=MORE_SLOTS,
        )
    base = compare_scores(trace.base_after or (), trace.base)
    if base.most > trace.exact_tolerance:
        yield Problem(
            f"{others}, requests without an adapter get logprobs that differ by up to {base.most:.2g} nats from those before"
            " any was loaded",
            key=trace.target,
            hint="serve the base model from an engine without adapters until this is fixed",
        )


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
