"""Hydra refuses to compose the configuration, so the job does not start.

## What it checks
The `defaults:` lists of a job whose program composes its configuration with Hydra (verl, NeMo-RL, PipelineRL), and the merge of the
configurations that they name:

- An entry is a name, or one group with a name, a list of names or null.
- `_self_` stands in a list once, and `override` entries stand last.
- An `override` names a group that some list has, and a group has one choice.
- A list of one file does not meet a section of another under the same key.
- The configurations that they name are there, where their folder is here and no other is searched.

## Why it matters
The program stops before the job begins: "Could not override …", "Multiple values for …", "Cannot merge DictConfig with ListConfig".

## How to fix
Correct the list at the line that is named.

## When it can be wrong
The program registers configurations in Python that complete the list (a config store). ckptcheck reads files only.

## Seen in
https://hydra.cc/docs/advanced/defaults_list/
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job

MOST = 8
"""Largest number of findings."""


@rule(
    "JOB051",
    "refused-defaults",
    severity="error",
    on="job",
    when=lambda job: any(not refusal.is_override for refusal in job.refusals),
)
def check(job: Job) -> Iterator[Problem]:
    for refusal in [refusal for refusal in job.refusals if not refusal.is_override][:MOST]:
        leaf = refusal.leaf
        yield Problem(
            f"Hydra refuses the configuration: {refusal.why}",
            file=leaf.file,
            line=leaf.line,
            hint="the job stops before it starts; correct the configuration",
        )
