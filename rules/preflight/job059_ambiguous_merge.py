"""A value depends on the version of PyYAML, because a merge (<<) has its key twice.

## What it checks
A mapping of the job's configuration merges others, `<<: [*a, *b]`, and these give one key different values: two of them have it, or
one of them has it and merges a third that has it too. A key is not ambiguous if the mapping itself, a later file or an argument
sets it.

## Why it matters
YAML takes the value of the first mapping, and so did PyYAML up to 6.0.3. PyYAML 6.0.4 takes the value of the last mapping for keys
of two letters or more. For a key of one letter, such as `n`, it prefers a value that a merged mapping merges itself to that
mapping's own. So a job computes with other settings after an update of PyYAML, and nothing in its configuration shows it.

## How to fix
Write the key into the mapping itself, or merge one mapping only.

## When it can be wrong
The job pins a version of PyYAML, or reads YAML with another library (ruamel.yaml takes the first).

## Seen in
yaml/pyyaml#953
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.jobs.job import Job, shown
from ckptcheck.text.formatting import count

MOST = 8
"""Largest number of findings."""


@rule("JOB059", "ambiguous-merge", severity="warning", on="job", when=lambda job: bool(job.ambiguous))
def check(job: Job) -> Iterator[Problem]:
    for merge in job.ambiguous[:MOST]:
        yield Problem(
            f"{clip(merge.leaf.key, 120)} is {clip(shown(merge.leaf.value), 60)} with PyYAML up to 6.0.3 and "
            f"{clip(shown(merge.other), 60)} with 6.0.4: what is merged there (<<) has this key twice",
            file=merge.leaf.file,
            line=merge.leaf.line,
            hint="write the key into the mapping itself, or merge one mapping only",
        )
    if len(job.ambiguous) > MOST:
        left = job.ambiguous[MOST:]
        yield Problem(
            f"{count(len(left), 'more value depends', 'more values depend')} on the version of PyYAML in the same way",
            file=left[0].leaf.file,
            line=left[0].leaf.line,
            hint="write the keys into the mappings themselves, or merge one mapping only",
        )
