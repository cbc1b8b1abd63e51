"""After an adapter was replaced under its name, requests decode from the KV cache of the old one.

## What it checks
- A sequence that is longer than a block of the prefix cache is asked for before and after the adapter is replaced. The
  logprobs of its next tokens are those after a reset of the cache, and those of a cold load of the new adapter.

## Why it matters
- Engines keep cached prefixes by the adapter's name or number. A new adapter under the same name reads the keys and
  values that the old one computed: rollouts begin with a prompt as another policy read it.

## How to fix
- Reset the prefix cache after each replacement, or give every step a name of its own.

## When it can be wrong
- A job that keeps the cache on purpose, as in-flight updates do: `--ignore REF051`.

## Seen in
NVIDIA-NeMo/RL#4018 (17 refits without a reset of the cache)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.refit.logprob_diff import compare_logprobs
from ckptcheck.live.refit.lora.trace import LoraTrace, compare_scores


@rule("REF051", "stale-adapter-cache", severity="warning", on="lora", when=lambda trace: trace.cold_probe is not None)
def check(trace: LoraTrace) -> Iterator[Problem]:
    assert trace.cache_probe is not None
    assert trace.cold_probe is not None
    assert trace.updated is not None
    assert trace.updated_cold is not None
    if compare_scores(trace.updated.scores, trace.updated_cold.scores).most > trace.exact_tolerance:
        return  # the adapter itself is wrong: REF050
    cached, after_reset = trace.cache_probe.cached, trace.cache_probe.after_reset
    first = [scores.decode_logprobs[:1] for scores in (cached, after_reset, trace.cold_probe)]
    stale, reset = (compare_logprobs([one], first[2:]).most for one in first[:2])
    if reset > trace.exact_tolerance:
        yield Problem(
            f"after a reset of the prefix cache, {after_reset.cached_tokens} tokens still came from the cache of the old"
            f" adapter, and the next logprob differs by {reset:.2g} nats from a cold load of the new one",
            key=trace.adapter,
            hint="give every step's adapter a name of its own",
        )
    elif stale > trace.exact_tolerance:
        yield Problem(
            f"after the adapter was replaced under its name, {cached.cached_tokens} tokens came from the prefix cache of the old"
            f" one, and the next logprob differs by {stale:.2g} nats",
            key=trace.adapter,
            hint="reset the prefix cache after each replacement, or give every step's adapter a name of its own",
        )
