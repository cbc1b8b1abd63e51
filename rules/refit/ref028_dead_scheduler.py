"""The server generates nothing.

## What it checks
A request for one token is answered within a minute (or `--timeout`, where that is less), before anything else and once more
where a later request got no answer. A refusal (4xx) is an answer, and so is one in a form that is not known here.

## Why it matters
HTTP runs in another process than the scheduler. When that dies or hangs, `/health` of vLLM may go on to answer 200, and so do
`/model_info` and `/v1/models`; a job that waits for rollouts then waits for ever.

## How to fix
Look at the last lines of the server's log, and restart it. A weight update that failed half-way is a usual cause.

## When it can be wrong
A server that is busy for more than a minute with the requests of others. Ask it again when it is idle.

## Seen in
SGLang 0.5.23 (a shape that does not fit kills it), vLLM 0.32.0 on a CPU (the first request after a failed `reload_weights`)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.refit.attached import Attached


@rule("REF028", "dead-scheduler", severity="error", on="servers")
def check(evidence: Attached) -> Iterator[Problem]:
    for seen in evidence.servers:
        if seen.dead:
            yield Problem(
                f"{seen.url} generates nothing: {seen.dead}",
                hint="look at the end of its log, and restart it",
            )
