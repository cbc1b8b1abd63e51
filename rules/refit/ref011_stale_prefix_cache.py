"""After the sync, the engine computes with keys and values, or images, cached by the old weights.

## What it checks
- A prompt is in the prefix cache before the sync. After the sync the engine decodes it twice: with the cache as the
  update left it, and after a reset. Both give the same tokens and logprobs.
- The same after the reset, against a cold load of the same weights: a reset that does nothing is an error.
- The rule uses decoded tokens, because logprobs of a prompt bypass the cache.
- Images: the engine scores text after an image before the sync, after it, and after a reset of its encoder cache, each time with an
  empty prefix cache. The last two scores equal the logprobs of a cold load of the same weights, else it is an error; so is an
  engine that fails on the image, because its workers dropped what its scheduler counts on. If the reset does not help, the rule is
  silent: other rules say which weights are wrong.

## Why it matters
- Prompts repeat in RL, above all the system prompt. Their cached keys and values come from an old model, and the
  mismatch grows with every sync until the engine restarts.
- Engines keep the outputs of the vision tower under a hash of the image. After a sync that moves the tower or its projector,
  prompts with a known image are answered with a mixture of two models.

## How to fix
- Reset the prefix cache with every update (vLLM: `reset_prefix_cache()`, `pause(clear_cache=True)`; SGLang:
  `flush_cache=True`).
- Or give every version its own `cache_salt`.
- Images: in vLLM, call `reset_encoder_cache()` and `reset_prefix_cache()`. An update by the weight-transfer API drops nothing, and
  `reload_weights` drops the outputs in the workers only (vLLM 0.32): the next request with the image ends in "Encoder cache miss".
  No call of SGLang 0.5.23 drops them, not even `flush_cache()`: start it with `SGLANG_VLM_CACHE_SIZE_MB=0`. Or freeze the vision
  tower and its projector.

## When it can be wrong
- The trial resets the cache after a sync only with `--set clear-cache=on`, which `preflight` and `gate` give where the job does
  so. If yours does, give it too: the rule then finds a reset that does nothing. Where it is not known what the job does, a stale
  cache is an info. The trial never drops the outputs of images by itself.

## Seen in
NVIDIA-NeMo/RL#4018, PrimeIntellect-ai/prime-rl#2270, radixark/miles#2783; vllm-project/vllm#44910 (stale image
embeddings after a native update)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.logprob_diff import compare_logprobs
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.runtime.engines.base import SequenceScores

TOLERANCE = 1e-4
"""Nats that two ways to compute the same tokens may differ by."""


@rule(
    "REF011",
    "stale-prefix-cache",
    severity="warning",
    on="refit",
    when=lambda trace: (
        any(scoring.cache_probe for scoring in trace.scorings)
        or (bool(trace.cache_unused_reason) and len(trace.scorings) > 2)
        or bool(trace.image_probes or trace.images_skipped)
    ),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    yield from _find_stale_prefix(trace)
    yield from _find_stale_image(trace)
    if reason := trace.cache_unused_reason or trace.images_skipped:
        raise Skip(reason)


def _find_stale_prefix(trace: RefitTrace) -> Iterator[Problem]:
    for scoring in trace.scorings:
        probe = scoring.cache_probe
        if probe is None:
            continue
        cached, reset, cold = probe.cached, probe.after_reset, probe.cold
        difference = _compare_decoding(cached, reset)
        stale = 0.0 if cold is None else _compare_decoding(reset, cold)
        # where weights are wrong, their own findings say why it decodes something else
        is_reset_void = (
            reset.cached_tokens > 0
            and cold is not None
            and (
                stale > max(TOLERANCE, trace.noise_floor.cold_load_tolerance)
                or reset.decoded_tokens != cold.decoded_tokens
            )
            and not trace.syncs[scoring.after_sync - 1].has_wrong_parameter
        )
        if is_reset_void:
            yield Problem(
                f"after sync {scoring.after_sync} and a reset of the prefix cache, {reset.cached_tokens:,} tokens still came from"
                f" the cache, and logprobs differ by {stale:.3g} nats from a cold load of the same weights: the reset did"
                " nothing",
                hint="find why the engine keeps its cache: a reset is refused while requests run",
                severity="error",
            )
            return
        if difference > TOLERANCE:
            yield Problem(
                f"after sync {scoring.after_sync}, {cached.cached_tokens:,} tokens came from the prefix cache, and"
                f" logprobs differ by {difference:.3g} nats from those after a reset",
                hint="reset the prefix cache with every update; where your job does, --set clear-cache=on has the trial do so",
                severity="info" if trace.clears_cache is None else None,
            )
            return


def _find_stale_image(trace: RefitTrace) -> Iterator[Problem]:
    allowed = max(TOLERANCE, trace.noise_floor.cold_load_tolerance)
    for probe in trace.image_probes:
        if probe.failure:
            yield Problem(
                f"after sync {probe.after_sync} the engine fails on an image that it had seen before: {probe.failure}",
                hint="reset the encoder cache with every update by the engine's own call, which tells its scheduler too",
                severity="error",
            )
            return
        kept, after_reset = (compare_logprobs([side], [probe.cold]).most for side in (probe.kept, probe.after_reset))
        if kept > allowed >= after_reset:
            yield Problem(
                f"after sync {probe.after_sync}, logprobs after an image that the engine had seen before differ by {kept:.3g} nats"
                " from a cold load of the same weights; after a reset of its encoder cache they agree, so the cache holds what the"
                " old weights made of the image",
                hint="reset the encoder cache with every update",
                severity="error",
            )
            return


def _compare_decoding(one: SequenceScores, other: SequenceScores) -> float:
    """Return the largest difference between the logprobs of decoded tokens, above the tolerance where the tokens differ."""
    most = compare_logprobs([one.decode_logprobs], [other.decode_logprobs]).most
    return most if one.decoded_tokens == other.decoded_tokens else max(most, 2 * TOLERANCE)
