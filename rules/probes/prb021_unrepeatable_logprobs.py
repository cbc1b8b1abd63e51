"""The same request gives other logprobs when it is repeated.

## What it checks
The engine decodes responses one request at a time, twice, with the prefix cache reset in between.

## Why it matters
Nothing can be compared with an engine that does not agree with itself. State that an earlier request left is the usual cause.

## How to fix
Reset caches, run eager, and look for state that outlives a request.

## When it can be wrong
Some GPU kernels sum in any order; more than 1e-3 nats in float32 is still too much.

## Seen in
NVIDIA-NeMo/RL's guide for new models asks for ten runs of every cell for this reason
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.decode import DecodeResult
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe
from ckptcheck.rollouts.gap_summary import exceeds_rounding


@rule("PRB021", "unrepeatable-logprobs", severity="warning", on="probe", when=requires_probe("decode"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("decode", DecodeResult)
    if exceeds_rounding(result.repeat_gap, result.dtype):
        yield Problem(
            f"the same request, alone, gives other logprobs the second time: by up to {result.repeat_gap.largest:.3g} nats",
            hint="look for caches that were not reset and for kernels that sum in any order",
        )
