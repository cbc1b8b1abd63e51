"""An engine of this version is known to serve wrong weights after an update.

## What it checks
Engine, version, kind of device, architecture and the kinds of its weights (tied, INT4, a draft model) against the reports in
`ckptcheck/engines/known.toml`, each with where it was seen. Of a server they are what it says of itself and, of its weights, what
SOURCE has.

## Why it matters
These faults say nothing: the update call answers success, and the first sync may be right. Many show only on the hardware, or with
the kernels, of a job: a trial elsewhere is then clean and the job is not.

## How to fix
As the report says; another version is the usual way.

## When it can be wrong
A report names a condition that cannot be asked for (a backend, a flag). Then this warns where nothing happens; a trial
(`ckptcheck refit`) shows whether it does. A fix that came after the report was written down is not known here.

## Seen in
The issue that is named in the message
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.engines.known import Running, known


@rule("REF033", "known-bad-version", severity="warning", on="engines", when=bool)
def check(running: tuple[Running, ...]) -> Iterator[Problem]:
    for engine in running:
        for bad in known():
            if bad.concerns(engine):
                where = f" at {engine.where}" if engine.where else ""
                yield Problem(
                    f"{engine.engine} {engine.version}{where} with {engine.architecture}: {bad.what} ({bad.seen})",
                    hint=bad.instead,
                )
