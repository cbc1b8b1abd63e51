"""The job has settings that are known to go wrong together in its version.

## What it checks
The tables `known_issues.toml` in the folders of `ckptcheck/frameworks`: each issue names the settings, the
versions of the framework or the engine in which it is so, what happens, and the public issue or the commit that says so. Some are
arithmetic that a framework asserts (the engine's parallel sizes against the GPUs, batches against groups), with its place in the
code.

Shares of one GPU's memory: those of vLLM's servers that one script starts on it, and of the engines of the policy and of a reward
model in verl and ROLL, are 1 together at most, as vLLM stops where less than its share is free. How much a trainer needs is not
known, so that an engine beside it that never sleeps is a warning from nine tenths on. SGLang takes a share of what is free when it
starts, and asserts no sum.

Where the job's version is not known, an issue that a later version mends is skipped, with the option that gives the version.

## Why it matters
Such a job often starts and trains: a loss that leaves the correction out, a reference that a resume replaces, a loader that starts
anew. Others stop after hours, at the first save or the first update.

## How to fix
Take the version that mends it, or change one of the settings.

## When it can be wrong
The job runs with another version than the one that its files pin (`--framework-version`, `--set engine-version`), or with a patch
of its own: `--ignore JOB060`.

## Seen in
Each issue names its own source.
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.jobs.job import Job


@rule("JOB060", "known-issue", severity="error", on="job", when=lambda job: bool(job.issues))
def check(job: Job) -> Iterator[Problem]:
    unsure = []
    for met in job.issues:
        issue = met.issue
        settings = f": {met.settings}" if met.settings else ""
        if met.unsure:
            unsure.append(f"{issue.says} ({met.span}, {issue.source}){settings}; {met.unsure}")
            continue
        end = issue.span[1]
        mended = end and (end.release or f"the commit {end.commit}")
        hints = [issue.hint] if issue.hint else []
        hints += [f"take {met.program} {mended} or later"] if mended else []
        yield job.problem_at(
            met.leaf,
            f"{issue.says} ({met.span}, {issue.source}){settings}",
            hint=", or ".join(hints) or "change one of these settings",
            severity=issue.severity,
            follows=("JOB033",) if job.is_of_heads(met) else (),
        )
    if unsure:
        raise Skip("; ".join(unsure))
