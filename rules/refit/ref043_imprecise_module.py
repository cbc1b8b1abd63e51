"""One side computes a module otherwise than float32 does, and the other side does not.

## What it checks
- In a trial below float32, and in one whose two sides differ although the weights are right, transformers runs the same weights
  in float32 over one prompt. For every module the rule compares how far the outputs of engine and trainer are from that.
- Two sound sides round about equally. A side is off where the median token is three times as far as on the other side, and as far
  as rounding to the dtype explains.

## Why it matters
- In bf16 the logprobs of two sound sides differ by hundredths of a nat. A head in a narrower dtype, a lost logit scale or another
  epsilon hides below that, and is in the cold load too, so no comparison with a cold load shows it.
- The message names the side that is off, so nobody searches the other.

## How to fix
- Compare the configuration of that side with the model's config.json for the module that is named: scales, epsilons, the
  rotary base.
- If the module is only rounded further, see in which dtype that side computes it.

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
