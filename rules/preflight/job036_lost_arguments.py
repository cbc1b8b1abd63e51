"""The launch line ends before its last arguments, which are never passed.

## What it checks
The command after the one that starts the job begins with an argument (`--flag`, `a.b=c`) and not with a program: the line before
it was meant to go on. Its backslash is missing, a blank follows the backslash, or a comment or an empty line stands between.

## Why it matters
The shell ends the command there. The job starts without these arguments and trains with defaults; only after it has ended does the
shell say that it knows no command `--flag`.

## How to fix
End every line of the command but the last with a backslash and nothing after it, and put comments before the command.

## When it can be wrong
No program's name begins with two dashes or holds a dotted key with `=`.

## Seen in
mozilla/DeepSpeech#1980 and VITA-Group/VLM-3R#9 (comments behind the backslashes: all arguments after them are lost)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.jobs.document import LostArguments
from ckptcheck.jobs.job import Job


@rule("JOB036", "lost-arguments", severity="error", on="job", when=lambda job: job.lost is not None)
def check(job: Job) -> Iterator[Problem]:
    lost = job.lost
    if lost is None:
        return
    cause, hint = _explain(lost)
    yield Problem(
        f"{cause}, so the launch line ends there: the arguments from line {lost.begin} on ({clip(lost.first, 60)}, …) are never"
        " passed",
        file=lost.file,
        line=lost.end,
        hint=hint,
    )


def _explain(lost: LostArguments) -> tuple[str, str]:
    """Return (why the line ends where it does, what to do)."""
    written = lost.last_line.strip("\r\n")
    if not written.strip():
        return f"line {lost.end} is empty", f"remove line {lost.end}"
    if written.lstrip().startswith("#"):
        return f"line {lost.end} is a comment in the middle of the command", "move the comment before the command"
    if written.endswith("\\"):
        return f"the backslash of line {lost.end} stands in a comment", "move the comment before the command"
    if written.rstrip().endswith("\\"):
        return f"a blank follows the backslash of line {lost.end}", f"remove the blanks at the end of line {lost.end}"
    return f"line {lost.end} does not end with a backslash", f"end line {lost.end} with a backslash"
