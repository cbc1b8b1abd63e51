"""One side computes a module with an error against float32 that the other side does not have.

## What it checks
- transformers runs the same weights in float32 over one prompt, if the trial computes below float32, or if its two sides differ
  although the weights are right. For every module the rule measures the error of the engine's and of the trainer's output.
- Two sound sides have about the same error. A side is off if its error, for the median token, is three times that of the other
  side, and three times what rounding to the dtype explains.

## Why it matters
- In bf16 the logprobs of two sound sides differ by hundredths of a nat. A head in a narrower dtype, a lost logit scale or another
  epsilon hides below that, and is in the cold load too, so no comparison with a cold load shows it.
- The message names the side that is off, so you need not search the other.

## How to fix
- Compare that side's configuration of the named module with the model's config.json: scales, epsilons, the rotary base.
- If only rounding differs, find out in which dtype that side computes the module.

## When it can be wrong
- An engine that computes a module in fewer bits on purpose (an FP8 cache, quantized activations) is farther from float32.

## Seen in
MiniMax-M1 (a bf16 head of the engine beside a float32 one of the trainer), vLLM and SGLang options for the dtype of the head
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trace_queries import describe_off_module


@rule(
    "REF043",
    "imprecise-module",
    severity="warning",
    on="refit",
    when=lambda trace: trace.module_errors is not None or bool(trace.module_errors_skipped),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    if trace.module_errors is None:
        raise Skip(trace.module_errors_skipped)
    place = describe_off_module(trace)
    if place is not None:
        yield Problem(
            f"with the weights of step {trace.module_errors.step}, {place}",
            key=trace.module_errors.module,
            hint="see in which dtype and with which settings this side computes it; a cold load does the same, so the sync is not"
            " to blame",
        )
