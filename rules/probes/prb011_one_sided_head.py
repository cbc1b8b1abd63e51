"""Only one side computes its output head in float32.

## What it checks
The model runs in bfloat16, and both sides score the same responses with output heads in bfloat16 and in float32: four
combinations. The job's combination (`--switch head_fp32=on`, `--trainer-head-fp32`) should not be worse than one that is the
same on both sides.

## Why it matters
The head decides how a logprob is rounded. A float32 head narrows the gap where both sides have it; on one side only it was found
to be worse than none.

## How to fix
Set it on both sides, or on neither.

## When it can be wrong
On few tokens the four numbers are close. Ask for more with `--response`.

## Seen in
ServiceNow/PipelineRL's migration to vLLM V1; MiniMax-M1's report; huggingface/trl#4303; PrimeIntellect-ai/prime-rl#2952
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe
from ckptcheck.live.experiments.probes.two_sides import LmHeadResult


@rule("PRB011", "one-sided-head", severity="warning", on="probe", when=requires_probe("head"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("head", LmHeadResult)
    engine, trainer = result.job_heads
    if engine == trainer:
        return
    job_gap, best = (
        result.gaps[result.job_heads],
        min((False, True), key=lambda head_fp32: result.gaps[head_fp32, head_fp32].k3),
    )
    best_gap = result.gaps[best, best]
    if job_gap.k3 > best_gap.k3:
        side, alternative = ("engine" if engine else "trainer"), ("on both sides" if best else "on neither")
        yield Problem(
            f"only the {side} computes its output head in float32: the gap (k3) is {job_gap.k3:.3g}, and"
            f" {round(best_gap.k3, 9):.3g} with such a head {alternative}",
            hint='have both sides compute the head in float32 (vLLM: --hf-overrides \'{"head_dtype": "float32"}\')',
        )
