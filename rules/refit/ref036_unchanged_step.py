"""The trainer's step changed nothing, so the syncs after it prove nothing.

## What it checks
- The trainer takes an optimizer step between two syncs. The rule compares its exports before and after the step.
- It reports an error if nothing changed, and a warning that names the matrices if some of them did not change.

## Why it matters
- Only new values distinguish a sync that works from one that does nothing. Without them every check after the step is
  empty: stale weights look right.
- In a job it is worse: the optimizer updates float32 masters, and a step that does not copy them into the model trains
  nothing, while the loss is still computed and logged.

## How to fix
- Find the function that copies masters into the model's parameters, and call it after every step (Megatron's distributed optimizer
  does it in `step_with_ready_grads`; with overlapped parameter gathering it happens in the next forward pass).
- See that the exporter reads the parameters, and not a copy from the start.

## When it can be wrong
- A matrix of zeros without a gradient stays as it is. Quantized weights can round to the same codes; there the rule reports
  only a step that changes nothing at all.

## Seen in
NVIDIA-NeMo/RL#3312 (saved weights that no step changed), volcengine/verl#7495
"""

from collections.abc import Iterator, Mapping

from ckptcheck import Problem, rule
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.weight_names import describe_origin
from ckptcheck.text.formatting import count, join_truncated

FLOATS = ("F64", "F32", "BF16", "F16")


@rule(
    "REF036",
    "unchanged-step",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.step for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    last: dict[int, Mapping[str, str]] = {}
    for sync in trace.syncs:
        if sync.step in last:
            continue
        last[sync.step] = sync.sent
        before = last.get(sync.step - 1)
        if not before:
            continue
        names = [name for name, digest in sync.sent.items() if before.get(name) == digest]
        norm = trace.steps[sync.step - 1].grad_norm if len(trace.steps) >= sync.step else None
        gradient = "" if norm is None else f" (gradient norm {norm:.3g})"
        if len(names) == len(sync.sent):
            is_export_stale = any(
                part.reason == "stale"
                for each in trace.export_comparisons
                for part in each.wrong
                if each.step == sync.step
            )
            yield Problem(
                f"step {sync.step} changed none of the {count(len(names), 'weight')} that the trainer exports{gradient}:"
                " the syncs after it send the old values, so they prove nothing"
                + ("; its ranks do hold new values, so the exporter reads a copy (REF037)" if is_export_stale else ""),
                hint="export the model's own parameters"
                if is_export_stale
                else "look at the loss: nothing has a gradient"
                if norm == 0
                else "if the learning rate is not zero: copy the optimizer's masters into the model after each step, and export "
                "the model's own parameters",
                names=tuple(names),
            )
            return
        matrices = {weight.name for weight in trace.weights if len(weight.shape) > 1 and weight.dtype in FLOATS}
        if frozen := sorted(matrices.intersection(names)):
            yield Problem(
                f"step {sync.step} left {count(len(frozen), 'matrix', 'matrices')} of {len(matrices):,} unchanged{gradient}:"
                f" {join_truncated(frozen)}{describe_origin(trace, frozen)}",
                key=frozen[0],
                hint="find whether these are trained, and whether their masters are copied into the model",
                severity="warning",
                names=tuple(frozen),
            )
            return
