"""The update's answer, or the reported weight version, does not match what the engine holds.

## What it checks
- An update that reports success wrote every weight. An update that reports failure wrote no weight.
- The rule reports every failed update, also when the trial does not compare weights (`--no-check-weight-update-equal`).
- If the engine reports a version after an update, it differs from the one before. If both are numbers, the later one is larger.

## Why it matters
- Training code believes the answer. A false success stays unnoticed. After a false failure the job sends the weights
  again or throws the step away.
- Off-policy corrections and filters for stale samples compute with versions. A version that stands still switches them off; a
  version that falls makes the staleness negative.

## How to fix
- Compare digests instead of answers, and report the fault to the engine's authors.
- Pass the step as the version to the update call.

## When it can be wrong
- SGLang answers False to an update with `in_place` pauses (`--pause in_place`) when it cannot flush its cache; the
  weights are written. This does no harm if your job reads the answer that way. It does harm if your job sends again
  or gives up the step.
- Versions that are hashes are not numbers; the rule then checks only that they change.

## Seen in
sgl-project/sglang#26032 (HTTP 200), SGLang 0.5.23 (`(True, 'Success')` for tensors that it dropped); radixark/miles#2244, vLLM 0.32
(the version stays `default` unless finish_weight_update is given one)
"""

from collections.abc import Iterator
from itertools import pairwise

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trace_queries import wrong_references


@rule("REF009", "untrue-answer", severity="error", on="refit", when=lambda trace: bool(trace.syncs))
def check(trace: RefitTrace) -> Iterator[Problem]:
    answers = [_judge_answer(trace, number) for number in range(len(trace.syncs))]
    yield from [Problem(message, hint=hint) for message, hint in answers if message][:1]
    versions = [sync.answer.weight_version for sync in trace.syncs if sync.answer.weight_version is not None]
    for before, after in pairwise(versions):
        are_numbers = before.lstrip("-").isdecimal() and after.lstrip("-").isdecimal()
        if (are_numbers and int(after) <= int(before)) or before == after:
            yield Problem(
                f"the engine's weight version went from {before} to {after}", hint="pass the step to the update call"
            )
            break
    if not any(message for message, _ in answers) and not any(sync.manifest for sync in trace.syncs):
        raise Skip("every update reported success, and the trial did not compare weights")


def _judge_answer(trace: RefitTrace, number: int) -> tuple[str, str]:
    """Return how the answer to a sync contradicts what the engine holds, or that it failed, and a hint; "" for a true success."""
    sync = trace.syncs[number]
    # where the cold load's checkpoint is wrong, nothing tells whether the engine is
    is_wrong = sync.has_unwritten_parameter or (sync.has_wrong_parameter and not wrong_references(trace, sync))
    if sync.answer.ok:
        return (
            f"sync {sync.number} reported success, but the engine holds other weights than were sent" * is_wrong,
            "see the findings about weights; until then, a job cannot trust this answer: compare digests after an update",
        )
    if sync.manifest and not is_wrong:
        return (
            f"sync {sync.number} reported failure ({sync.answer.message}), but it wrote all weights",
            "see that the job does not send again or stop for this answer; it fails for what comes after the weights, such as a"
            " cache that cannot be flushed while requests are paused",
        )
    return (
        f"sync {sync.number} failed: {sync.answer.message}",
        "the message is the engine's own: its log has the traceback, and the engine may hold some of the new weights by now",
    )
