"""After the sync, the engine uses what the old vision tower made of an image, or fails on the image.

## What it checks
- The engine scores text after an image before the sync, after it, and after a reset of its encoder cache. The last two scores
  equal the logprobs of a cold load of the same weights.
- The prefix cache is empty each time, so that only the encoder's outputs can be old.
- The rule also reports an engine that fails on the image after the sync: its workers dropped what its scheduler counts on.
- If the reset does not help, the rule is silent: other rules say which weights are wrong.

## Why it matters
- Engines keep the outputs of the vision tower under a hash of the image. Images repeat in RL: every prompt is answered several
  times, and comes again in the next epoch. After a sync that moves the vision tower or its projector, such prompts are answered
  with a mixture of two models, until the engine needs the memory for another image.

## How to fix
- Drop the outputs with every update: in vLLM, call `reset_encoder_cache()` and `reset_prefix_cache()`. An update by the
  weight-transfer API drops nothing. `reload_weights` drops the outputs in the workers only (vLLM 0.32): the scheduler believes
  that they still keep the image, and the next request with it ends in "Encoder cache miss".
- No call of SGLang 0.5.23 drops them, not even `flush_cache()`: start it with `SGLANG_VLM_CACHE_SIZE_MB=0`, so that it keeps none.
- Or freeze the vision tower and its projector: then the kept outputs stay right.

## When it can be wrong
- The trial does not drop the outputs before it scores. If your job does after every sync, ignore the rule.

## Seen in
vllm-project/vllm#44910 (stale image embeddings after a native update)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.logprob_diff import compare_logprobs
from ckptcheck.live.refit.trace import RefitTrace

TOLERANCE = 1e-4
"""Nats that two ways to compute the same tokens may differ by."""


@rule(
    "REF055",
    "stale-encoder-cache",
    severity="error",
    on="refit",
    when=lambda trace: bool(trace.image_probes or trace.images_skipped),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    if not trace.image_probes:
        raise Skip(trace.images_skipped)
    allowed = max(TOLERANCE, trace.noise_floor.cold_load_tolerance)
    for probe in trace.image_probes:
        if probe.failure:
            yield Problem(
                f"after sync {probe.after_sync} the engine fails on an image that it had seen before: {probe.failure}",
                hint="reset the encoder cache with every update by the engine's own call, which tells its scheduler too",
            )
            return
        kept, after_reset = (compare_logprobs([side], [probe.cold]).most for side in (probe.kept, probe.after_reset))
        if kept > allowed >= after_reset:
            yield Problem(
                f"after sync {probe.after_sync}, logprobs after an image that the engine had seen before differ by {kept:.3g} nats"
                " from a cold load of the same weights, and not once it dropped what it keeps of images: that was made by the"
                " weights of before",
                hint="reset the encoder cache with every update",
            )
            return
