"""The server generates no tokens.

## What it checks
- The server answers a request for one token within a minute (or within `--set timeout=SECONDS` if that is less). The check asks
  first of all, and again after any request that got no answer.
- A refusal (4xx) counts as an answer, and so does an answer in an unknown form.

## Why it matters
- HTTP runs in another process than the scheduler. When the scheduler dies or hangs, `/health` of vLLM, `/model_info`
  and `/v1/models` may still answer 200, and a job that waits for rollouts waits for ever.

## How to fix
- Look at the last lines of the server's log, and restart it. A weight update that failed half-way is a usual cause.
- If the log says "illegal memory access", docs/refit.md says what to set so that the next crash names the kernel.

## When it can be wrong
- The server may be busy with other requests for more than a minute. Check again when it is idle.

## Seen in
SGLang 0.5.23 (a shape that does not fit kills it), vLLM 0.32.0 on a CPU (the first request after a failed `reload_weights`)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.refit.running_servers.trace import ServerEvidence


@rule("REF028", "dead-scheduler", severity="error", on="servers")
def check(evidence: ServerEvidence) -> Iterator[Problem]:
    for server in evidence.servers:
        if server.dead_reason:
            yield Problem(
                f"{server.url} generates no tokens: {server.dead_reason}",
                hint="look at the end of its log, and restart it; where that names a CUDA error, see the end of docs/refit.md",
            )
