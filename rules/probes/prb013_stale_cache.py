"""After a weight update the engine decodes from keys and values of the old weights.

## What it checks
- `stale`: the probe fills the prefix cache with a long prompt, updates the weights by the engine's own path without a reset, and
  asks again: once as before, and once under another cache salt, which shares nothing with the cache. Both answers have to be the
  same. Logprobs of a prompt bypass the cache and cannot show this.
- `inflight`: the weights change while a response is running. The new weights decode the remaining tokens again with clean caches.
  Where the update had to clear the caches, both have to give the same logprobs: a warning. Where it keeps them, the report says how
  much that costs: info.

## Why it matters
- Prompts repeat in RL, above all the system prompt. Their keys come from an old model, and the mismatch grows with every sync until
  a restart: a curve that climbs for hundreds of steps.
- A job that clears the caches pays for computing every running request again, to get responses of one policy after the update.
- Neither the old nor the new policy gives tokens of mixed caches these logprobs. In-flight updates accept that for speed. How much
  it costs differs between models, and it is a part of the gap that no sync can close.

## How to fix
- Reset the cache with every update: vLLM `reset_prefix_cache()`, `pause(clear_cache=True)`, which computes running requests again;
  SGLang `flush_cache=True`, mode retract.
- Or send a `cache_salt` that contains the version.
- Or let requests drain (wait), or abort them.

## When it can be wrong
- A job that resets the cache itself is not affected.
- PipelineRL and others keep caches on purpose, so that is only info.
- The rule allows narrow dtypes 0.05 nats. An engine whose results for batches of other shapes differ by more would look like one
  that clears nothing.
- If the engine says that an update in flight failed, PRB017 reports it.

## Seen in
NVIDIA-NeMo/RL#4018; PrimeIntellect-ai/prime-rl#2270 and #1651; radixark/miles#2783; ServiceNow/PipelineRL: pause "keep" without
clearing the cache matched its reference
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe
from ckptcheck.live.experiments.probes.weight_updates import InflightProbeResult, StaleCacheResult


@rule("PRB013", "stale-cache", severity="warning", on="probe", when=requires_probe("stale", "inflight"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    for _, result in trace.list_results("stale", "inflight"):
        if isinstance(result, StaleCacheResult) and result.is_stale:
            difference = (
                "the first token is another"
                if result.first_token_differs
                else f"logprobs are up to {result.gap.largest:.3g} nats off"
            )
            yield Problem(
                f"after a weight update that resets nothing {result.cached} tokens still come from the prefix"
                f" cache: {difference} than under another cache salt",
                hint="reset the prefix cache with every update, or give every version its own cache_salt",
            )
        elif isinstance(result, InflightProbeResult):
            yield from _judge_running_responses(result)


def _judge_running_responses(result: InflightProbeResult) -> Iterator[Problem]:
    for response in result.responses:
        gap = response.gap_after_update
        if gap is None or gap <= result.tolerance:
            continue
        after = f"{response.pause_label}: after the update {response.tokens - (response.switch_token or 0)} tokens"
        if not response.clear:
            yield Problem(
                f"{after} were decoded partly from keys and values of the old weights, {gap:.3g} nats a token from"
                f" what the new weights compute",
                hint="clear the caches with the update if that is more than the job's own off-policyness",
                severity="info",
            )
        elif response.ok:
            yield Problem(
                f"{after} are {gap:.3g} nats a token from what the new weights compute with clean caches",
                hint="reset the caches in a call of their own before requests go on, or let them drain (wait)",
            )
