"""Only one side computes its output head in float32.

## What it checks
The model runs in bfloat16, and the same responses are scored with heads in bfloat16 and in float32 on both sides: four
combinations. The one that the job has (`--switch head_fp32=on`, `--trainer-head-fp32`) should not be worse than an even one.

## Why it matters
The head decides what a logprob is rounded to. A float32 head narrows the gap where both sides have it; on one side only it
was found to be worse than none.

## How to fix
Set it on both sides, or on neither.

## When it can be wrong
On few tokens the four numbers are close. Ask for more with `--response`.

## Seen in
ServiceNow/PipelineRL's migration to vLLM V1; MiniMax-M1's report; huggingface/trl#4303; PrimeIntellect-ai/prime-rl#2952
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.head import HeadSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB011", "one-sided-head", severity="warning", on="probe", when=asked("head"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    seen = trace.of("head", HeadSeen)
    engine, trainer = seen.own
    if engine == trainer:
        return
    here, best = seen.gaps[seen.own], min((False, True), key=lambda wide: seen.gaps[wide, wide].k3)
    there = seen.gaps[best, best]
    if here.k3 > there.k3:
        side, both = ("engine" if engine else "trainer"), ("on both sides" if best else "on neither")
        yield Problem(
            f"only the {side} computes its output head in float32: the gap (k3) is {here.k3:.3g}, and"
            f" {round(there.k3, 9):.3g} with such a head"
            f" {both}",
            hint='have both sides compute the head in float32 (vLLM: --hf-overrides \'{"head_dtype": "float32"}\')',
        )
