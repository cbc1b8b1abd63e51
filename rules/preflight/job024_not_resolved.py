"""Some settings and files cannot be resolved without running the job.

## What it checks
Settings that rules ask for are plain values or references to such values, and the files that the job builds on are there.

## Why it matters
ckptcheck does not know what a resolver, an environment variable, a command or a missing file would set, so it skips the rules
that need it.

## How to fix
Run ckptcheck where the files are. Give variables with `--env NAME=VALUE`, since ckptcheck does not read those of its own
environment, and other values after the file: `ckptcheck preflight job.yaml a.b=1`.

A sourced file that is missing stops a script with `set -e`: an error, where its folder is on this machine, or the script leads to
it from its own (`cd "$(dirname "$0")"`). A relative path depends on the folder from which the script is started, so that one found
nowhere near the script is a warning.

## When it can be wrong
It is not a fault of the job. A file that another program writes before the job starts: `--ignore JOB024`.

## Seen in
NeMo-RL's `${mul:…}`, slime's sourced model scripts: scripts/low_precision/run-qwen3-4b-fp8.sh at 624b824 sources
`../scripts/models/qwen3-4B.sh`, which is one folder higher
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.jobs.job import Job

DATE = re.compile(r"\$\(date\b|\$\{now:|[\w.]*strftime\(")
"""A value that is only the time at which the job starts, as the names of its folders have: no rule needs it."""
MOST = 6
"""Largest number of settings in the message."""


@rule("JOB024", "not-resolved", severity="info", on="job")
def check(job: Job) -> Iterator[Problem]:
    unresolved = {
        setting.leaf.key: (setting, setting.leaf)
        for setting in job.settings.values()
        if setting.status == "unresolved" and setting.leaf and not DATE.match(setting.source)
    }
    for refusal in job.absent:
        is_decided = refusal.note.endswith("does not exist")
        stops = "the script stops there (set -e)"
        yield Problem(
            f"{refusal.note}: {stops}"
            + ("" if is_decided else ", unless it is started from a folder that has the file"),
            file=refusal.leaf.file,
            line=refusal.leaf.line,
            severity="error" if is_decided else "warning",
            hint="correct the path, or put the file there"
            if is_decided
            else 'put cd "$(dirname "$0")" before it, or correct the path',
        )
    told = {refusal.note for refusal in (*job.absent, *job.refusals)}
    parts = [f"{clip(key)}: {setting.source}" for key, (setting, _) in unresolved.items()]
    parts += [note for note in job.notes if note not in told]
    if parts:
        first = next((leaf for _, leaf in unresolved.values()), None)
        rest = len(parts) - MOST
        more = f"; and {rest} more" if rest > 0 else ""
        yield Problem(
            f"not resolved: {'; '.join(parts[:MOST])}{more}",
            file=first.file if first else None,
            line=first.line if first and first.file else None,
            hint="give the values after the file: a.b=1; those of variables with --env NAME=VALUE",
        )
