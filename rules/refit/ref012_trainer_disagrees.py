"""Trainer and engine give different logprobs for the same tokens.

## What it checks
- After every sync, the engine's logprobs of fixed sequences equal the trainer's: by prefill, and for the last tokens
  also by decoding, which is other code and the code that makes rollouts.
- vLLM cannot decode given tokens beside a draft model. The report then says so, and the rule judges prefill alone.
- The trial measures the limit (the noise floor, shown in the report). A side differs from itself when it scores
  again, when it scores each sequence alone, and when every weight moves by one unit in its last place. The rule
  allows three times that on average and ten times for the largest difference, and never less than 2e-6 and 1e-5 nats.
- Some engines also round the inputs of their layers (W8A8, FP8); the reference does not. The rule then allows twice
  the difference of the cold load after every sync, and judges the cold load only if it is not finite.

## Why it matters
- At the first step of a job the policy ratio is 1 and the KL is 0.
- If the cold load is as far off, the sync is not at fault: the two programs compute differently (rope, norms, the
  dtype of the head, the temperature).

## How to fix
- If a cold load is as far off: compare the configs of both sides.
- If the cold load agreed before the step, and no more after it: the cold load is made from the trainer's export, so the trainer
  exports other weights than it computes with.
- Otherwise: see the findings about weights. If there are none, the engine computes with something of before the update beside its
  weights: a prefix cache that was not flushed, or what it made of the weights when it loaded them.

## When it can be wrong
- In bf16 a mixture of experts may route one token to other experts. That token is then far off, and no weight is
  wrong. Run the trial in float32 to tell.

## Seen in
verl, NeMo-RL and slime guides: `mult_prob_error`, Pearson, train/rollout mismatch KL
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trace_queries import (
    compare_scoring,
    describe_off_module,
    input_rounding_tolerance,
    misexported_weights,
)
from ckptcheck.text.formatting import count

HINT = (
    "see the findings about weights; if there are none, the engine computes with something of before the update beside them:"
    " a prefix cache that was not flushed, or what it made of the weights when it loaded them"
)


@rule("REF012", "trainer-disagrees", severity="error", on="refit", when=lambda trace: bool(trace.scorings))
def check(trace: RefitTrace) -> Iterator[Problem]:
    if trace.noise_floor.trainer.rounding is None:
        raise Skip("the trial ended before it measured what rounding amounts to")
    tolerance = trace.noise_floor.trainer_tolerance | input_rounding_tolerance(trace)
    noise = f"noise explains {tolerance.most:.2g} and {tolerance.mean:.2g}"
    for scoring in trace.scorings:
        diffs = compare_scoring(scoring)
        sync_label = f"sync {scoring.after_sync}" if scoring.after_sync else "a cold load"
        if diffs.trainer.within(tolerance):
            if diffs.forced is None or diffs.forced.within(tolerance):
                continue
            place = describe_off_module(trace)
            yield Problem(
                f"after {sync_label}, the logprobs of trainer and engine differ by up to {diffs.forced.most:.3g} nats when the"
                f" engine decodes, {diffs.forced.mean:.3g} on average; {noise}, and by prefill they differ by"
                f" {diffs.trainer.most:.2g}" + (f"; {place}" if place is not None else ""),
                hint="find what is wrong in this module on this side: decoding and prefill share it"
                if place is not None
                else "the engine's decoding differs from its prefill: ckptcheck parity probe --only decode says more",
            )
            return
        explanation, hint = "", HINT
        if not diffs.cold.within(tolerance):
            was_sound = bool(scoring.after_sync) and compare_scoring(trace.scorings[0]).cold.within(tolerance)
            explanation, hint = _explain_cold_load(trace, was_sound)
        yield Problem(
            f"after {sync_label}, the logprobs of trainer and engine differ by up to {diffs.trainer.most:.3g} nats,"
            f" {diffs.trainer.mean:.3g} on average; {noise}{explanation}",
            hint=hint,
        )
        return


def _explain_cold_load(trace: RefitTrace, was_sound: bool) -> tuple[str, str]:
    """Return why a cold load, which reads the trainer's own export, is as far from the trainer; and a hint.

    was_sound: whether the cold load before the first step agreed with the trainer.
    """
    export = "; a cold load of what the trainer exports is as far off"
    if wrong := misexported_weights(trace):
        return (
            f"{export}, because {count(len(wrong), 'weight')} of it {'is' if len(wrong) == 1 else 'are'} wrong (REF037):"
            " neither the sync nor the engine is to blame",
            "see REF037: the exporter writes other values than the trainer holds",
        )
    if (place := describe_off_module(trace)) is not None:
        return (
            f"; a cold load of the same weights is as far off, so the sync is not to blame: {place}",
            "look at this module on this side: its configuration, or its implementation",
        )
    if was_sound and trace.export_comparisons:
        return (
            f"{export}, and before the step it was not, although the export is what the trainer's ranks hold: since the step one"
            " of the two computes with something else than these weights",
            "find what the trainer's forward pass reads beside its parameters: a copy from before the step",
        )
    if was_sound:
        return (
            f"{export}, and before the step it was not: the trainer exports other weights than it computes with",
            "find what the exporter reads: a copy from before the step, or only some ranks",
        )
    return (
        "; a cold load of the same weights is as far off: the two compute differently, and the sync is not to blame",
        "compare what the two read of the config (rope, norms, the head, a scaling of logits) and the dtypes in which they compute;"
        " in bfloat16 a mixture of experts may send a token to another expert: run the trial in float32 to tell",
    )
