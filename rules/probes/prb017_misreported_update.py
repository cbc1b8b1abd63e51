"""During an update in flight, the engine does something else than it says.

## What it checks
The probe updates the weights while a response is running, in every way that the engine can pause. Decoding the response again
under the old and the new weights alone shows from which token on the new weights were used.

- The response does what the mode's name says: `wait` lets it end with the old weights, `abort` ends it, and every other mode
  (`keep` in vLLM; `retract` and `in_place` in SGLang) lets it continue to the tokens that the request asked for.
- A response that ends short is reported as aborted.
- The engine's answer to the update is true.
- The version that the engine reports for each token changes where the weights do.

## Why it matters
- A job chooses the mode for its meaning. Under `wait`, a response that passes to the new weights is a mixture that the job treats
  as on-policy. Under `keep`, an aborted response is lost work, and the lost answers are the long ones.
- A truncated answer that is reported as finished gets a reward as if the policy had chosen to stop there.
- A trainer that believes a false failure sends the weights again, or continues with versions that do not exist.
- Staleness filters, and importance weights of partly old rollouts, use the versions. An engine that stamps the version at the end
  of a response calls all of it fresh.

## How to fix
- Choose another mode, or drain or abort requests yourself before the update. Tell the engine's maintainers.
- Count the tokens, and treat short responses without a stop token as aborted.
- Send the version with the update, and read versions per token. Where they are wrong, keep the time of the update instead.

## When it can be wrong
- An engine that refuses an update while requests run, and says so, is honest; a job that drains requests first is not affected.
- A response that is over before the engine receives the update shows nothing, and passes.
- Within one process vLLM has no `wait`, and does not answer an aborted request. ckptcheck does both in place of the server, so the
  probe tests only vLLM's scheduler.
- If old and new weights are so close that a token's logprob does not change, that token looks old, and a wrong answer of the
  engine goes unnoticed.
- The probe asks for no stop string and goes on past stop tokens, so it does not test responses that end there.

## Seen in
volcengine/verl#5721, weights updated before the rollout was finished; vllm-project/vllm#54443, one response of two versions;
rllm#622, the version stamped when a response is complete; radixark/miles#2244; vLLM 0.32 in one process, whose abort silently drops
running requests; in_place of SGLang 0.5.23, which applies the update and answers False, because it did not flush the cache
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe
from ckptcheck.live.experiments.probes.weight_updates import InflightProbeResult, InflightResponse


@rule("PRB017", "misreported-update", severity="error", on="probe", when=requires_probe("inflight"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    for response in trace.result_of("inflight", InflightProbeResult).responses:
        yield from _judge_response(response)
        if response.ok and response.tokens:
            yield from _judge_versions(response)


def _judge_response(response: InflightResponse) -> Iterator[Problem]:
    says_abort = response.finish not in ("", "length", "stop")
    is_lost = response.tokens < response.requested_tokens and not (says_abort and response.pause == "abort")
    if response.ok and response.pause_mismatch:
        yield Problem(
            f"{response.pause_label}: {response.pause_mismatch}",
            hint="pause in another way, or drain or abort requests yourself before the update",
            severity="error" if is_lost else "warning",
        )
    elif is_lost:
        yield Problem(
            f"{response.pause_label}: a running response ended after {response.tokens} of {response.requested_tokens}"
            f" tokens, and the engine calls it {response.finish or 'nothing'}",
            hint="count tokens of responses that ran across an update; treat short ones as aborted",
        )
    elif not response.ok and response.switch_token is not None:
        yield Problem(
            f"{response.pause_label}: the engine says that the update in flight failed, and computes with it"
            f" from token {response.switch_token} on",
            hint="do not rely on its answer: compare checksums (ckptcheck refit), or drain requests first",
        )
    elif not response.ok:
        yield Problem(
            f"{response.pause_label}: the engine refused the update while a request was running",
            hint="drain or abort requests before an update",
        )


def _judge_versions(response: InflightResponse) -> Iterator[Problem]:
    if response.switch_token is not None and response.reported_switch is None:
        detail = (
            "the engine reports that for none of them" if response.has_versions else "the engine reports no versions"
        )
        yield Problem(
            f"{response.pause_label}: tokens from number {response.switch_token} on are of the new weights, and {detail}",
            hint="send the version with the update (finish_weight_update(weight_version=…)), and read it per token",
            severity="warning",
        )
    elif response.reported_switch is not None and response.has_version_mismatch:
        since = f"number {response.switch_token} on" if response.switch_token is not None else "none of them"
        yield Problem(
            f"{response.pause_label}: the engine says that tokens from number {response.reported_switch} on are of the"
            f" new weights, and it is {since}",
            hint="do not filter by the engine's versions; keep the time of the update instead",
            severity="warning",
        )
