"""The same request gives other logprobs when it is asked again.

## What it checks
Responses are decoded one request at a time, twice, with the prefix cache reset in between.

## Why it matters
Nothing can be compared with an engine that does not agree with itself. State that is left from a request before is the usual cause.

## How to fix
Reset caches, run eager, and look for states that outlive a request.

## When it can be wrong
Some GPU kernels sum in any order; more than 1e-3 nats in float32 is still too much.

## Seen in
NVIDIA-NeMo/RL's guide for new models asks for ten runs of every cell for this reason
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.decode import DecodeSeen
from ckptcheck.parity.probes.limits import apart
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB021", "unrepeatable-logprobs", severity="warning", on="probe", when=asked("decode"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    seen = trace.of("decode", DecodeSeen)
    if apart(seen.again, seen.dtype):
        yield Problem(
            f"the same request, alone, gives other logprobs the second time: by up to {seen.again.largest:.3g} nats",
            hint="look for caches that were not reset and for kernels that sum in any order",
        )
