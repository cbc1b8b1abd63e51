"""The bounds of the importance correction leave out a ratio of 1.

## What it checks
A ratio of 1 says that trainer and engine agree. It should lie between the bounds of an importance correction, which cuts weights to
them or leaves tokens and responses out:

- the lower bound is above the upper one: no ratio lies between;
- a bound that leaves out is on the wrong side of 1, or on it: what agrees is left out, or one half of all small differences;
- a bound that cuts is on the wrong side of 1: every weight is scaled, that of 1 too.

## Why it matters
What is left out trains nothing, and no log says it: the loss is 0, or that of the tokens on which both programs differ most. With
weights cut to 0.5 the job trains at half its learning rate. A bound is often meant as a distance from 1: 0.2 for 0.8 to 1.2.

## How to fix
Write bounds around 1: 0.5 and 2 for tokens, 0.99 and 1.01 for the mean of a response.

## When it can be wrong
Never for bounds that are read: those of a function of the job's own are not.

## Seen in
AReaL (`RejectionSamplingConfig.__post_init__` raises), allenai/open-instruct (`ExperimentConfig.__post_init__` raises)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job

OUTCOMES = {
    "mask": ("what has a ratio of 1 is left out: on it trainer and engine agree", "error"),
    "edge": ("one half of all small differences is left out, and the rest leans to one side", "warning"),
    "weight": ("every weight is cut, that of a ratio of 1 too", "warning"),
}


@rule(
    "JOB065",
    "bounds-without-one",
    severity="error",
    on="job",
    when=lambda job: any(job[f"algorithm.{kind}"].status != "unknown" for kind in ("weight", "mask")),
)
def check(job: Job) -> Iterator[Problem]:
    for kind in ("weight", "mask"):
        job.require_resolved(f"algorithm.{kind}", f"algorithm.{kind}_low", f"algorithm.{kind}_high")
        low, high = (job.number(f"algorithm.{kind}_{end}") for end in ("low", "high"))
        # A largest weight of 0 stands for no bound.
        outside = [
            end
            for end, bound, sign in (("low", low, 1), ("high", high, -1))
            if bound and (sign * (bound - 1) > 0 or (kind == "mask" and bound == 1))
        ]
        at = next(
            (f"algorithm.{kind}_{end}" for end in (*outside, "low", "high") if job[f"algorithm.{kind}_{end}"].leaf), ""
        )
        if not at or any(job[at].place in met.settings for met in job.issues):
            continue
        ends = [
            f"at {word} {job.describe(f'algorithm.{kind}_{end}')}" for end, word in (("low", "least"), ("high", "most"))
        ]
        if low and high and low > high:
            text, severity = "no ratio lies between", "error"
        elif outside:
            end = outside[0]
            ends = [ends[("low", "high").index(end)]]
            on_edge = kind == "mask" and job.number(f"algorithm.{kind}_{end}") == 1
            text, severity = OUTCOMES["edge" if on_edge else kind]
        else:
            continue
        what = "weights are cut to" if kind == "weight" else "the loss takes ratios of"
        yield job.problem(
            f"{what} {' and '.join(ends)}: {text}",
            at=at,
            severity="error" if severity == "error" else "warning",
            hint="write bounds around 1, such as 0.5 and 2",
        )
