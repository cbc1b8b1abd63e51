"""A fault of the transport stays unseen: success is reported, and nothing shows what went wrong.

## What it checks
- `ckptcheck refit --conformance` puts faults on a transport: buckets that are dropped, sent twice or cut short, a sender that
  dies, two updates at once, an update while a response is generated, and more.
- A fault is silent if the transport reported success, and neither the digests of what the receiver holds nor versions can tell:
  the tensors in question cannot be read, or tokens carry no version of the weights that computed them.

## Why it matters
- A job that meets this fault trains on with wrong weights, or with responses of mixed weights, and no check can find it.

## How to fix
- Let the receiver count what it was promised, and refuse an update that is not whole.
- Report the version of the weights with every token (vLLM and SGLang can), or abort running requests at an update.
- Let `tensors()` yield everything that the receiver computes with.

## When it can be wrong
- The job never updates while it generates: `--ignore REF057` for that fault alone is not possible, so leave `generate` out of your
  class. The fault is then listed as not tried.

## Seen in
vllm-project/vllm#54443 and sgl-project/sglang#35926 (versions of tokens under updates in flight)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.conformance.report_faults import group_by_kind
from ckptcheck.live.conformance.trace import ConformanceTrace


@rule("REF057", "silent-fault", severity="error", on="conformance")
def check(trace: ConformanceTrace) -> Iterator[Problem]:
    for kind, title, outcomes in group_by_kind(trace.find_outcomes("silent")):
        yield Problem(
            f"{title}: {outcomes[0].detail}",
            key=kind,
            hint="make the receiver refuse what is not whole, and report a version with every token",
        )
