"""A fault could not be put on the transport, so nothing is known about it.

## What it checks
- `ckptcheck refit --conformance` lists each fault that it could not try, with the reason: the class has no method for it, the
  transport takes all buckets in one call, the receiver reports no version, a sound update is not proved.

## Why it matters
- Not tried is no pass. A table without the row would read like one.

## How to fix
- Add the optional method that the reason names to your class (docs/conformance.md lists them).
- Choose a transport that has what the fault needs, or test the fault where it exists: on GPUs, with several ranks.

## When it can be wrong
- The fault cannot happen at all: a transport of one call has nothing between its beginning and its end. Then nothing is missing.

## Seen in
Transports that take all buckets in one call: reload_weights of vLLM, update_weights_from_disk of SGLang
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.conformance.report_faults import group_by_kind
from ckptcheck.live.conformance.trace import ConformanceTrace


@rule("REF062", "untried-fault", severity="info", on="conformance", when=lambda trace: not trace.problems)
def check(trace: ConformanceTrace) -> Iterator[Problem]:
    for kind, title, outcomes in group_by_kind(trace.find_outcomes("untried")):
        yield Problem(f"not tried: {title}: {outcomes[0].detail}", key=kind)
