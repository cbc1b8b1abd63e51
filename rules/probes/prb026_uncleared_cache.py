"""An update under way that was to clear the caches leaves old keys and values in use.

## What it checks
The tokens after an update under way are decoded again by the new weights with clean caches. Where the caches were to be cleared
with the update, both have to be the same.

## Why it matters
A job that clears the caches pays for computing every running request anew, to have responses of one policy after the update. Where
that does not happen it pays, or believes to, and trains on tokens that neither policy gives these logprobs.

## How to fix
Reset the caches in a call of their own before requests go on, let requests drain (wait), or abort them; tell the engine's
maintainers.

## When it can be wrong
Narrow types are given 0.05 nats; an engine that computes batches of other shapes much less alike than that would be taken for one
that clears nothing. An update that the engine says failed is PRB017's.

## Seen in
SGLang's in_place, which cannot flush a cache in use, and says so (PRB017)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.inflight import InflightSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB026", "uncleared-cache", severity="warning", on="probe", when=asked("inflight"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    seen = trace.of("inflight", InflightSeen)
    for each in seen.passages:
        if each.clear and each.ok and each.off is not None and each.off > seen.unlike:
            yield Problem(
                f"{each.way}: after the update {each.tokens - (each.changed or 0)} tokens are {each.off:.3g} nats a token from what"
                " the new weights compute with clean caches",
                hint="reset the caches in a call of their own before requests go on, or let them drain (wait)",
            )
